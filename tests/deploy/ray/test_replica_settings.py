"""What a replica serves with."""

import pytest

from deploy.ray.replica_settings import RAYS_OWN, settings_of
from service.errors import ConfigurationError
from service.settings import Settings


def test_a_replica_has_the_processors_that_ray_gave_it():
    assert settings_of({}, {"CPU": 3}).compute_threads == 3
    assert settings_of({}, {"CPU": 0.5}).compute_threads == 1
    assert settings_of({}, {}).device == "cpu", "nobody gave it a GPU, whatever its node has"


def test_with_a_gpu_it_computes_there_or_does_not_start():
    settings = settings_of({}, {"CPU": 4, "GPU": 1})

    assert (settings.device, settings.compute_threads) == ("cuda", 0)


def test_a_device_that_was_chosen_stays():
    assert settings_of({"device": "cpu"}, {"GPU": 1}).device == "cpu"


def test_settings_of_the_file_go_before_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("ATTENTION_MAX_TOKENS", "100")
    monkeypatch.setenv("ATTENTION_MAX_SEQUENCES", "7")

    settings = settings_of({"max_tokens": 50}, {})

    assert (settings.max_tokens, settings.max_sequences) == (50, 7)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"max_tokenz": 1}, "max_tokenz is no setting"),
        ({"max_tokens": 0}, "ATTENTION_MAX_TOKENS=0"),
        ({"workers": 4}, "num_replicas"),
        ({"port": 80}, "http_options.port"),
    ],
)
def test_what_is_no_setting_here_is_refused(overrides, said):
    with pytest.raises(ConfigurationError, match=said):
        settings_of(overrides, {})


def test_what_ray_has_in_place_of_settings_are_settings():
    assert set(RAYS_OWN) <= set(Settings.model_fields)
