"""The words of a caption as coco-caption counts them: its Penn-Treebank tokenizer without Java.

All published caption scores are of words cut by one Java program (Stanford's PTBTokenizer of 2014, lower case, then a list of
punctuation removed). This is the same cutting, written anew and held against what that program answers: at every place all
rules are tried and the longest match wins, the earlier rule on a tie. Its oddities are kept on purpose ("sky.a" is one word,
"!!" and "-lrb-" are words, emoji beyond the basic plane vanish), because a nicer tokenizer gives other scores.

Two answers differ on purpose. Letters and vowel signs which that program does not know (many of Kannada, Malayalam, Burmese
and Khmer, scripts of later years) stay in their words instead of being deleted. And a caption's words never depend on the next
caption: there "the letter K." gives "k" or "k." according to what the next line starts with; here it gives "k"."""

import re
import unicodedata
from collections.abc import Callable
from itertools import groupby

REMOVED = frozenset(("''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"))

_LINE_BREAKS = re.compile(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029\x00]+")

_ALWAYS = """adj adm adv al ala alex apr ariz assn assoc asst atty aug ave bancorp bhd bldg blvd brig bros calif capt cf cie cmdr
    co col colo conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc ext feb fla fri ft ga gen gov govs hon inc ind
    insp intl invt jan jos jr jul jun kan kans ky lt ltd maj mar md messrs mich minn mlle mme mo mon mont mr mrs ms msgr mt natl
    neb nev nov oct okla penn pfc ph plc pres prof pvt rd rep reps rev rt sen sens sep sept seq sfc sgt spc sq sr st ste supt sys
    tel tenn thu thur thurs treas tue tues univ va vs vt wed wis wisc wm wyo"""
_NOT_IN_CAPITALS = "mfg mtg ppte ppty pte ptes pty ptys"
_CAPITALISED = "ark az del ill la mass miss ore pa tex wash"
_BEFORE_A_NUMBER = "art ca fig figs no nos op pp prop"
_SENTENCE_STARTS = """A The In An At That It Some While There Other Her One Their As Many This About He They She After What Here
    But These So If You We Then More When Such Now Yet Last Once Our Since However"""

_SYMBOLS = (  # beyond ASCII: those that are words of their own; all others vanish
    "\u00a1\u00a5-\u00a9\u00ac\u00ae-\u00b1\u00b4\u00b6-\u00b8\u00bf\u00d7\u00f7\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6"
    "\u05f3\u05f4\u0600-\u0603\u0606-\u060c\u0614\u061b\u061e\u061f\u066a\u066d\u06d4\u0700-\u070d\u07f6-\u07f8\u0964\u0965"
    "\u0e3f\u0e4f\u1fbd\u2016\u2017\u2020-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2044\u207a-\u207e\u208a-\u208e\u20a4\u2100"
    "\u2101\u2103-\u2106\u2108\u2109\u2114\u2116-\u2118\u211e-\u2123\u2125\u2127\u2129\u212e\u213a\u213b\u2140-\u2144"
    "\u214a-\u214d\u214f\u2155-\u215e\u2190-\u2bff\u3001\u3002\u3012\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
    "\uffe0\uffe1\uffe5\uffe6"
)
_REWRITTEN = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-", "¢": "cents", "£": "#", "¤": "$",
    "₠": "$", "€": "$", "\x80": "$", "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "&amp;": "&", "&lt;": "<",
    "&gt;": ">", "&nbsp;": "",
}  # fmt: skip
_QUOTES = {"`": "\x91\u2018\u201b\u2039", "'": "\x92\u2019\u203a", "``": "\x93\u201c\xab", "''": "\x94\u201d\xbb"}
_STRAIGHT = {ord(mark): quote for quote, marks in _QUOTES.items() for mark in marks}


def _letters(categories: str) -> str:
    """A regular-expression class body: the characters of the basic plane with these categories, as ranges."""
    known = (*range(0x41, 0xFE00), *range(0xFE10, 0xFFFE))
    codes = [c for c in known if unicodedata.category(chr(c))[0] in categories]
    runs = [[c for _, c in run] for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0])]
    return "".join(f"{re.escape(chr(run[0]))}-{re.escape(chr(run[-1]))}" for run in runs)


_BARE = _letters("L") + "\U00010000-\U0010ffff"
_L = _BARE + _letters("M") + "\u02c2-\u02c5\u02d2-\u02df\u02e5-\u02eb\u02ed\u02ef-\u02ff"
_A = f"[{_L}]"
_N = rf"[{_L}\d]"
_Q = "['\x92\u2019]"
_WORD = rf"{_A}{_N}*(?:[.!?]{_A}{_N}*)*"
_IN_PATH = r"[^\s\"<>|(){}]"
_AT_PATH_END = r"[^\s\"<>|(){}.!?,;-]"
_ACRONYM = r"[A-Za-z](?:\.[A-Za-z])+\."


def _any(words: str) -> str:
    return "|".join(words.split())


def _kept_together(text: str) -> str:
    """Brackets and spaces inside one token, as the treebank writes them."""
    return re.sub(r"\s", "\xa0", text).replace("(", "-lrb-").replace(")", "-rrb-")


def _straight(text: str) -> str:
    return text.translate(_STRAIGHT)


# (pattern, how its text is written). Group 1 is the token; what is matched after it competes for length, but stays to be read.
_RULES: tuple[tuple[re.Pattern[str], Callable[[str], str]], ...] = tuple(
    (re.compile(pattern), written)
    for pattern, written in (
        (r"(</?[A-Za-z!][^<>~]*>)", _kept_together),
        (rf"(https?://{_IN_PATH}+{_AT_PATH_END})", str),
        (rf"(www\.(?:[^\s\"<>|().!?,]+\.)+[A-Za-z]{{2,4}}(?:/{_IN_PATH}+{_AT_PATH_END})?)", str),
        (rf"((?:[^\s\"`'<>|(){{}}.!?,_$0-9@/:;=\\\[\]^A-Z-]+\.)+(?:com|net|org|edu)(?:/{_IN_PATH}+{_AT_PATH_END})?)", str),
        (r"(<?[A-Za-z0-9][^\s\"<>|(){}]*@(?:[^\s\"<>|(){}.]+\.)*[^\s\"<>|(){}.]+>?)", str),
        (r"(@[A-Za-z_][A-Za-z_0-9]*)", str),
        (r"(&(?:amp|lt|gt|nbsp);)", str),
        (r"(&(?:quot|apos);)", lambda text: "''"),
        (r"(&#\d+;)", str),
        (r"((?i:can))(?i:not)(?![^\W_]|['’])", str),
        (rf"((?i:gon|wan))(?i:na)(?!{_N}|{_Q})", str),
        (rf"((?i:got))(?i:ta)(?!{_N}|{_Q})", str),
        (rf"((?i:gim|lem))(?i:me)(?!{_N}|{_Q})", str),
        (r"([A-Za-z]*[A-MO-Za-mo-z])(?i:n['\x91\x92\u2018\u2019\u201b`]t)", str),
        (r"((?i:n['\x91\x92\u2018\u2019\u201b`]t))", _straight),
        (rf"({_WORD}){_Q}(?i:s|m|d|ll|re|ve)(?![A-Za-z])", str),
        (r"('(?i:s|m|d|ll|re|ve))(?![A-Za-z])", _straight),
        ("([\x92\u2019](?i:s|m|d|ll|re|ve))", _straight),
        (r"('(?i:n))(?![A-Za-z\"])", str),
        ("([\x92\u2019](?i:n))", str),
        (rf"({_Q}(?i:n){_Q}|{_Q}(?i:em|till?|cause)|{_Q}[2-9]0s)", str),
        (rf"({_Q}\d\d)(?:\s|\Z)", str),
        (r"('(?i:t))(?i:is|was)", str),
        (rf"([yY]{_Q})[A-Za-z]", str),
        (rf"((?i:[ldj]|ol|dunkin|somethin){_Q})", str),
        (rf"((?i:c'mon|c'est|e'er|ne'er|qu'il|ma{_Q}am|o{_Q}er|o{_Q}clock))", str),
        (rf"([A-HJ-XZn]{_Q}{_A}{{2,}})", str),
        (rf"([dDoOlL]{_Q}{_A}{_N}+(?:[-_]{_N}+)*)", str),
        (rf"([A-Za-z]+[aeiouyAEIOUY]{_Q}[aeiouA-Z]{_A}*)", str),
        (rf"((?i:{_any(_ALWAYS)})\.)", str),
        (rf"((?:{'|'.join(f'[{w[0]}{w[0].upper()}]{w[1:]}' for w in _NOT_IN_CAPITALS.split())})\.)", str),
        (rf"((?:{'|'.join(f'{w.capitalize()}|{w.upper()}' for w in _CAPITALISED.split())})\.)", str),
        (rf"((?i:{_any(_BEFORE_A_NUMBER)})\.)\s?\d", str),
        (r"((?i:ph\.d)\.)", str),
        (rf"([A-Za-z])\.\s+(?:(?:{_any(_SENTENCE_STARTS)}|M[rs]\.)(?:\s|\Z)|</?[A-Za-z][^<>]*>\s)", str),
        (r"([A-Za-z]\.)", str),
        (rf"({_ACRONYM})", str),
        (rf"((?:{_WORD}|{_N}+)\.)[,;:\u3001]", str),
        (r"([A-Z]+(?:(?:[+&]|&amp;)[A-Z]+)+)", lambda text: text.replace("&amp;", "&")),
        (rf"({_WORD})", str),
        (rf"([{_BARE}\d]+(?:[-_\u058a\u2010\u2011](?:[dDoOlL]{_Q}{_A})?[{_BARE}\d]+)*)", str),
        (rf"([A-Za-z0-9][A-Za-z0-9.,]*(?:-(?:{_ACRONYM}|[A-Za-z0-9]+))+)", str),
        (r"([A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:\\?/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2})", str),
        (r"((?:\d{1,4}[- \xa0])?\d{1,4}\\?[/\u2044]\d{1,4})", _kept_together),
        (r"((?:\(\d{2,3}\)[ \xa0]?|\+{0,2}(?:\d{2,4}[- \xa0])?\d{2,4}[- \xa0])\d{3,4}[- \xa0]?\d{3,5})", _kept_together),
        (r"([-+]?\d*(?:[.:,\u066b\u066c]\d+)+|[-+]?\d+)", str),
        (r"([A-Z]+\$)", str),
        (r"([CcFf]#|[Cc]\+\+)", str),
        (rf"(#{_A}+|#+|@+|\*+|<{{1,2}}|>{{1,2}}|_+|[!?]+)", str),
        (r"([<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]](?![A-Za-z0-9]))", _kept_together),
        (r"([-^x=~<>']_[-^x=~<>'])", str),
        ("([\u00b2\u00b3\u00b9\u2070\u2074-\u2079]+|[\u2080-\u2089]+)", str),
        (r"(-{5,}|\\\*)", str),
        (r"(-{1,4}|[\x96\x97\u2013-\u2015]+|\.{3,5}|\.|…|`{1,2}|'{1,2})", lambda text: "-"),
        (r'(")', lambda text: "''"),
        ("([\x91-\x94\u2018\u2019\u201b\u2039\u203a\xab\u201c\xbb\u201d]{1,2})", _straight),
        (rf"([(){{}}\[\]¢£¤₠€\x80¼½¾⅓⅔$%&;=\\^|~/:,+*#@<>_\u201a\u201e\u201f{_SYMBOLS}])", str),
    )
)


def _scan(text: str) -> tuple[str, ...]:
    """All tokens of a text that are not removed."""
    tokens, position = [], 0
    while position < len(text):
        best: re.Match[str] | None = None
        longest, style = position, _RULES[0][1]
        for pattern, written in _RULES if not text[position].isspace() else ():
            match = pattern.match(text, position)
            if match and match.end() > longest:
                best, longest, style = match, match.end(), written
        if best is None:
            position += 1  # a space, or a character that the Java tokenizer deletes
            continue
        token = style(best.group(1))
        token = _REWRITTEN.get(token, token).lower()
        if token and token not in REMOVED:
            tokens.append(token)
        position = best.end(1)
    return tuple(tokens)


# Only here do words depend on what stands beyond a space; every other caption is looked up word by word.
_BEFORE = rf"(?i:\b(?:{_any(_BEFORE_A_NUMBER)})\.\s+\d)"
_ACROSS_SPACES = re.compile(rf"\d\)?[ \xa0]+\d|<[^<>]*>|(?<![^\W\d_])[^\W\d_]\.\s+[A-Z<]|{_BEFORE}")
_MAY_CROSS_SPACES = re.compile(r"[\d<]|\.\s")  # the same, quicker and coarser
# A single letter with a period at the end: not an initial, because most captions start like a sentence.
_LAST_LETTER = re.compile(r"(?:\A|[^\w.'&/-])[A-Za-z]\.\Z")
_MAX_REMEMBERED = 200_000
_remembered: dict[str, tuple[str, ...]] = {}


def _without_unknown_symbols(text: str) -> str:
    """Beyond the basic plane only letters stay (emoji vanish); soft hyphens and halves of characters leave no gap."""
    text = text.replace("\xad", "").encode("utf-8", "ignore").decode("utf-8")
    return "".join(c if c <= "\uffff" or unicodedata.category(c)[0] in "LM" else " " for c in text)


def one_line(text: str) -> str:
    """The caption without anything that some program takes for the end of a line."""
    return _LINE_BREAKS.sub(" ", text)


def ptb_tokenize(text: str) -> list[str]:
    """Lower-case words as coco-caption's PTBTokenizer gives them: "A man's dog, running." -> a man 's dog running."""
    text = one_line(text)
    if not text.isascii():
        text = _without_unknown_symbols(text)
    text = text.strip()
    if text.endswith(".") and _LAST_LETTER.search(text[-3:]):
        text = text[:-1]
    if _MAY_CROSS_SPACES.search(text) and _ACROSS_SPACES.search(text):
        return list(_scan(text))
    tokens: list[str] = []
    for word in text.split():
        known = _remembered.get(word)
        if known is None:
            if len(_remembered) >= _MAX_REMEMBERED:
                _remembered.clear()
            known = _remembered[word] = _scan(word)
        tokens += known
    return tokens
