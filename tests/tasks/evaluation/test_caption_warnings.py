"""Captions that say nothing are noticed, and good ones are left alone."""

from tasks.evaluation.caption_warnings import caption_warnings

ENDS = {"street", "fighting", "room"}
TRUTH = {f"v{n}": ["people are fighting"] for n in range(5)}


def warned(*captions: str, truth: dict[str, list[str]] = TRUTH, most: int = 20) -> str:
    return " ".join(caption_warnings({f"v{n}": caption for n, caption in enumerate(captions)}, truth, ENDS, most))


def test_different_sentences_that_end_are_fine() -> None:
    assert not warned("people are fighting", "a man walks through the street", "a man sits in a room")


def test_the_same_wrong_caption_for_most_videos_is_a_warning() -> None:
    said = warned(*["a man walks through the street"] * 3, "people are fighting", "a man sits in a room")
    assert said.startswith("3 of 5 captions are the same, 'a man walks through the street'")


def test_the_same_caption_is_fine_where_it_is_true() -> None:
    assert not warned(*["people are fighting"] * 5)


def test_captions_without_a_word_are_a_warning() -> None:
    assert "1 of 3 captions have no word" in warned("", "people are fighting", "a man sits in a room")


def test_captions_that_end_in_mid_sentence_are_a_warning() -> None:
    assert "5 of 5 captions end in mid-sentence or repeat a word" in warned(*["people a a a a"] * 5)
    assert "repeat a word, such as 'a are are fighting'" in warned("a are are fighting", "people are fighting")
    assert "1 of 2 captions" in warned("a man walks through the", "people are fighting")
    assert "mid-sentence" in warned("people are fighting", "a man sits in a room", most=3)
