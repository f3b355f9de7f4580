"""Our tokenizer gives the answers of coco-caption's Java tokenizer: stored ones, and live ones where a Java is found."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.metrics.java import NoJava, find_java
from storage.text.ptb_tokenizer import one_line, ptb_tokenize
from tests.java_tokenizer import java_tokenize

# (caption, the words that the Java tokenizer gave, with "A dog." as the next caption)
ANSWERS = (
    # contractions and possessives
    ("A man's dog isn't here, can't come and won't bark.", "a man 's dog is n't here ca n't come and wo n't bark"),
    ("I'm sure you're right, he'll say she'd go and we've gone", "i 'm sure you 're right he 'll say she 'd go and we 've gone"),
    ("They cannot; I'm gonna, we wanna, he gotta, lemme, gimme", "they can not i 'm gon na we wan na he got ta lem me gim me"),
    ("It’s a man’s dog and they don’t mind", "it 's a man 's dog and they do n't mind"),
    ("the dogs' bowls and James' hat", "the dogs bowls and james hat"),
    ("'Tis the season, 'twas the night, y'all", "'t is the season 't was the night y' all"),
    ("a 2'o'clock nap with O'Neil and ma'am", "a 2 o'clock nap with o'neil and ma'am"),
    ("rock 'n' roll, rock'n'roll and rock-n-roll", "rock 'n' roll rock 'n' roll and rock-n-roll"),
    ("give 'em the '80s music 'til dawn", "give 'em the '80s music 'til dawn"),
    ("a graffiti'ed wall near Ho'ohu road", "a graffiti'ed wall near ho'ohu road"),
    ("two men at Dunkin' Donuts", "two men at dunkin' donuts"),
    ("the mother/father's 1960's-era car", "the mother/father 's 1960 's era car"),
    ("couldn't've and DON'T", "could n't 've and do n't"),
    ("rock ’n’ roll at 5 o’clock in O’Neil’s", "rock ’n’ roll at 5 o’clock in o’neil 's"),
    ("a boy top'ed with mann't", "a boy top ed with mann t"),
    # hyphens and dashes
    ("a well-known two-year-old in a t-shirt", "a well-known two-year-old in a t-shirt"),
    ("wide--open and a -- b --- c - d", "wide open and a b c d"),
    ("en–dash em—dash a – b — c", "en dash em dash a b c"),
    ("non\u2011breaking co\u2010op", "non\u2011breaking co\u2010op"),
    ("- a dog -", "a dog"),
    ("multi- colored half-", "multi colored half"),
    ("a ----- rule", "a ----- rule"),
    # numbers
    ("1,000 people and 10.5 miles, 1,000.50", "1,000 people and 10.5 miles 1,000.50"),
    ("it is 10:30, 5:30pm or 9 a.m. now", "it is 10:30 5:30 pm or 9 a.m. now"),
    ("3/4 cup, 1/2 cup, 50/50, 24/7", "3/4 cup 1/2 cup 50/50 24/7"),
    ("1 1/2 hot dogs on 22 3/4 St.", "1\xa01/2 hot dogs on 22\xa03/4 st."),
    ("12/25/2010 and 2-3/4", "12/25/2010 and 2-3/4"),
    ("-5 and +5 and .5 or 5.", "-5 and +5 and .5 or 5"),
    ("the 1st, 2nd, 1980s, 20's and 3D", "the 1st 2nd 1980s 20 's and 3d"),
    ("5'10\" tall and 6' wide", "5 10 tall and 6 wide"),
    ("call 555-1234 or (555) 555-1234", "call 555-1234 or -lrb-555-rrb-\xa0555-1234"),
    ("a,1 b:5 5:a", "a ,1 b :5 5 a"),
    ("½ cup, 1½ and x²", "1/2 cup 1 1/2 and x ²"),
    # money and percent
    ("$5 and $5.00 and US$5", "$ 5 and $ 5.00 and us$ 5"),
    ("£10, €20, ¥30 and 5¢", "# 10 $ 20 ¥ 30 and 5 cents"),
    ("100% or 50 % of #1", "100 % or 50 % of # 1"),
    # abbreviations
    ("Mr. Smith and Mrs. Jones saw Dr. Who", "mr. smith and mrs. jones saw dr. who"),
    ("He is in the U.S.", "he is in the u.s."),
    ("He is in the U.S. The dog barks", "he is in the u.s. the dog barks"),
    ("at 5 a.m. and 6 p.m. today", "at 5 a.m. and 6 p.m. today"),
    ("toys, e.g. cars, i.e. red ones, etc.", "toys e.g. cars i.e. red ones etc."),
    ("8th Ave. and Main St.", "8th ave. and main st."),
    ("No. 5 but no. said no.5", "no. 5 but no said no. 5"),
    ("J.R.R. Tolkien and a Ph.D. student", "j.r.r. tolkien and a ph.d. student"),
    ("the letter K. A dog", "the letter k a dog"),
    ("S. 5th street", "s. 5th street"),
    ("a T.V. and T.V.s and D.C.'s", "a t.v. and t.v.s and d.c. 's"),
    ("two cats., one dog.; asleep.: yes", "two cats. one dog. asleep. yes"),
    ("in Wash. and wash. it", "in wash. and wash it"),
    # periods and other marks
    ("wait... what.. ok.... hmm . . . so…", "wait what ok hmm so"),
    ("hello!! what?! no! really?", "hello !! what ?! no really"),
    ("a sky.A man on.the end.", "a sky.a man on.the end"),
    ("hello!world a?b", "hello!world a?b"),
    (".hit ,and ;large ?A", "hit and large a"),
    ("one,two;three:four", "one two three four"),
    # quotes and brackets
    ("\"quoted\" and ``so'' and 'single' and `back`", "quoted and so and single and back"),
    ("“big” ‘ok’ «fr» ‹x›", "big ok fr x"),
    ("“‘nested’”", "``` nested '''"),
    ("(a man) [with] {a dog}", "-lrb- a man -rrb- -lsb- with -rsb- -lcb- a dog -rcb-"),
    ("smile :) and ;-) and <3", "smile :-rrb- and ;--rrb- and < 3"),
    # symbols
    ("A & B at AT&T, R&B, M&Ms, black&white", "a & b at at&t r&b m&m s black & white"),
    ("bread &amp; butter &lt;b&gt;", "bread & butter < b >"),
    ("and/or either/or w/ w/o a / b he/she km/h", "and/or either/or w / w/o a / b he/she km/h"),
    ("a/b/c/d \\ a\\b", "a/b/c / d \\ a \\ b"),
    ("a_b and _ and *star* ~ ^ + = |", "a_b and _ and * star * ~ ^ + = |"),
    ("C++ and C# code #tag @user", "c++ and c# code #tag @user"),
    ("<unk> <b> a<b", "<unk> <b> a < b"),
    ("70°F © 2010 ™ ★ ×", "70 ° f © 2010 ™ ★ ×"),
    # addresses
    (
        "see http://www.example.com/a?b=c, www.example.com or example.org/foo.",
        "see http://www.example.com/a?b=c www.example.com or example.org/foo",
    ),
    ("mail foo@bar.com now", "mail foo@bar.com now"),
    # other scripts
    ("a \U0001f600 dog \U0001f436\U0001f436 and \u2764\ufe0f ok", "a dog and ❤ ok"),
    ("一个男人在骑马。", "一个男人在骑马 。"),
    ("日本語のテキスト・テスト", "日本語のテキスト ・ テスト"),
    ("एक आदमी घोड़े की सवारी कर रहा है", "एक आदमी घोड़े की सवारी कर रहा है"),
    ("رجل يركب حصانا، نعم", "رجل يركب حصانا ، نعم"),
    ("גבר רוכב על סוס", "גבר רוכב על סוס"),
    ("café naïve Ünïcode", "café naïve ünïcode"),
    ("cafe\u0301 \xc9T\xc9", "cafe\u0301 \xe9t\xe9"),
    ("한국어 텍스트", "한국어 텍스트"),
    # white space
    ("one\u2028two\x0bthree\x0cfour\rfive\nsix\x85seven", "one two three four five six seven"),
    ("  a \t dog\xa0runs  ", "a dog runs"),
    ("", ""),
    (". , !", ""),
)

WORDS = """a A the man's dogs' Dog don't can't cannot 5 12 2010 1/2 3,000 10:30 $5 50% #1 No. St. Mr. U.S. p.m. e.g. etc. K. T.V.
    t-shirt two-year-old and/or w/ AT&T & ... -- - – — “big” ‘ok’ it’s "quoted" 'single' 'em '80s o'clock O'Neil (left) [sic] !!
    ?! ! ? , . ; : café का 男の人 😀 ❤ ½ € £5 5° www.foo.com hello!world sky.A a,b ,and .hit 3D 20's 555-1234 a_b * @user #tag I'm
    they'll gonna fig. Jr. Ave.""".split()  # noqa: SIM905
PIECES = [*"abT5.,-/:'!?&$%#", "dog", "Dog", "n't", "'s", "'ll", "12", "US", "st", "no", "--", "...", "’", "“", "é", "男", "–"]


@pytest.mark.parametrize(("caption", "words"), ANSWERS)
def test_words_are_those_of_the_java_tokenizer(caption, words):
    assert " ".join(ptb_tokenize(caption)) == words


def test_letters_that_the_java_tokenizer_deletes_stay_in_their_words():
    assert ptb_tokenize("മലയാളം ಕನ್ನಡ မြန်မာ ខ្មែរ") == ["മലയാളം", "ಕನ್ನಡ", "မြန်မာ", "ខ្មែរ"]


def test_the_last_letter_of_a_caption_does_not_depend_on_the_next_caption():
    assert ptb_tokenize("the letter K.") == ["the", "letter", "k"]
    assert ptb_tokenize("at 5 p.m.") == ["at", "5", "p.m."]


def test_live_java_gives_the_same_words():
    try:
        find_java()
    except NoJava as error:
        pytest.skip(str(error))
    draw = random.Random(11)
    sentences = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(400)]
    fragments = ["".join(draw.choices(PIECES, k=draw.randint(2, 5))) for _ in range(400)]
    captions = [f"A {text}" for text in [*sentences, *fragments, *(caption for caption, _ in ANSWERS)]]
    theirs = java_tokenize(captions)
    differing = [(c, ptb_tokenize(c), j) for c, j in zip(captions, theirs, strict=True) if ptb_tokenize(c) != j]
    assert differing == []


def test_soft_hyphens_and_halves_of_characters_leave_no_trace():
    assert ptb_tokenize("\xad") == ptb_tokenize("\ud83d") == []
    assert ptb_tokenize("snow\xadboard \ud83ddog") == ["snowboard", "dog"]


@given(st.text(max_size=60))
def test_any_text_gives_clean_words(text):
    words = ptb_tokenize(text)
    assert all(word and one_line(word) == word and " " not in word for word in words)
    assert ptb_tokenize(f"  {text}\u2028") == words


def test_a_long_run_of_one_character_does_not_hang():
    start = time.perf_counter()
    for character in ("a", "a.", "-", "<", "a@", "1/", "'", "a-", "(", "a'a", "www.", "&", "< ", "a. ", "1 ", "<a "):
        ptb_tokenize(character * 2000)
    assert time.perf_counter() - start < 10
