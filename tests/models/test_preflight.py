"""Checks before a download, with the answers that the hub's client gives."""

from types import SimpleNamespace

import pytest

from hgpo_envs.errors import InputError
from hgpo_train.models.preflight import check_model_source

hub = pytest.importorskip("huggingface_hub", reason="needs the extra `train`")


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """Return a function that sets what the hub's client returns or raises; nothing is in the cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: None)

    def answer(result):
        def download(*_args, dry_run, **_options):
            assert dry_run
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(hub, "snapshot_download", download)

    return answer


def test_a_download_that_fits_passes_and_one_that_does_not_is_refused(answer, tmp_path):
    answer([SimpleNamespace(file_size=1000, will_download=True)] * 2)
    check_model_source("me/tiny")
    answer([SimpleNamespace(file_size=10**15, will_download=True)] * 2)
    with pytest.raises(InputError, match=r"^the download of me/tiny needs 2,000,000\.0 GB in "):
        check_model_source("me/tiny")


def raised(exception: type[Exception]) -> Exception:
    """Return an error of the hub, without the HTTP response that its constructor wants, as a dry run wraps it."""
    error = hub.errors.DryRunError("no")
    error.__cause__ = exception.__new__(exception)
    return error


@pytest.mark.parametrize(
    ("exception", "line"),
    [
        ("RepositoryNotFoundError", "the hub has no public model of this name"),
        ("GatedRepoError", "it requires a permission"),
        ("OfflineModeIsEnabled", "HF_HUB_OFFLINE is set"),
        ("LocalEntryNotFoundError", "cannot be reached"),
    ],
)
def test_a_model_that_cannot_be_downloaded_is_one_line_unless_it_is_in_the_cache(answer, monkeypatch, exception, line):
    answer(raised(getattr(hub.errors, exception)))
    with pytest.raises(InputError, match=line) as caught:
        check_model_source("me/tiny")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: "config.json")
    check_model_source("me/tiny")


def test_a_path_without_a_folder_is_not_looked_up():
    with pytest.raises(InputError, match=r"^no folder './no/folder'"):
        check_model_source("./no/folder")
