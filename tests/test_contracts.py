"""What two rooms hold each in its own module, because neither imports the other: it must agree."""

import models.options
import models.types
import storage.options
import storage.text.vocabulary


def test_models_and_storage_have_the_same_special_tokens() -> None:
    names = ("PAD", "BOS", "EOS", "UNK")
    token_ids = [getattr(storage.text.vocabulary, name) for name in names]
    assert token_ids == [getattr(models.types, name) for name in names]
    assert len(set(token_ids)) == len(storage.text.vocabulary.SPECIAL_TOKENS)


def test_options_are_frozen_and_closed_in_models_and_storage_alike() -> None:
    ours, theirs = models.options.Options.model_config, storage.options.Options.model_config
    shared = ("frozen", "extra", "use_attribute_docstrings")
    assert [ours.get(name) for name in shared] == [theirs.get(name) for name in shared] == [True, "forbid", True]
