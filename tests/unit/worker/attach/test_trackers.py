"""Nothing that a script sends to trackers and hubs leaves the machine."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from scalescope.worker.attach.trackers import Trackers


def test_calls_of_a_tracker_are_counted_and_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    wandb = ModuleType("wandb")
    wandb.log = sent.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    trackers = Trackers()
    trackers.install()
    wandb.log({"loss": 1.0})
    trackers.remove()
    assert (sent, trackers.calls) == ([], {"wandb.log": 1})
    wandb.log("after")
    assert sent == ["after"]


def test_uploads_to_a_hub_end_well_and_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class HfApi:
        def upload_folder(self, **kwargs: object) -> None:
            raise ConnectionError

        create_commit = create_repo = upload_folder

    hub = SimpleNamespace(HfApi=HfApi)
    monkeypatch.setitem(sys.modules, "huggingface_hub.hf_api", hub)  # type: ignore[arg-type]
    trackers = Trackers()
    trackers.install()
    api = HfApi()
    assert api.create_repo("me/model").repo_id == "me/model"  # type: ignore[call-arg,attr-defined,func-returns-value]
    assert api.upload_folder(run_as_future=True).result() is None  # type: ignore[attr-defined,func-returns-value]
    api.create_commit()
    trackers.remove()
    assert trackers.calls == {"HfApi.create_repo": 1, "HfApi.upload_folder": 1, "HfApi.create_commit": 1}
