import os

import pytest
from pydantic import ValidationError

from service.errors import ConfigurationError
from service.settings import PREFIX, Settings, load_settings

FIELDS = Settings.model_fields


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_described(name):
    """The description is the documentation; `docs` and `attention serve --help` print it."""
    description = FIELDS[name].description

    assert description
    assert description.endswith(".")


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_a_default(name):
    """`attention serve` must work with an empty environment."""
    assert not FIELDS[name].is_required()


def test_an_empty_environment_gives_the_defaults():
    assert load_settings() == Settings()
    assert load_settings().model_dump() == {name: field.get_default() for name, field in FIELDS.items()}


EXAMPLES = {
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("9000", 9000),
    "backend": ("eager", "eager"),
    "device": ("cuda:1", "cuda:1"),
    "deterministic": ("true", True),
    "allow_tf32": ("1", True),
    "drain_grace_s": ("0", 0.0),
    "body_timeout_s": ("2.5", 2.5),
    "api_keys": ("one, two,,three ", ("one", "two", "three")),
    "admin_keys": ("root", ("root",)),
    "tutor_keys": ("one, two", ("one", "two")),
    "signing_key": ("a secret, with commas", "a secret, with commas"),
    "cors_origins": ("https://a.example,https://b.example", ("https://a.example", "https://b.example")),
    "rate_limit": ("100/second", "100/second"),
    "log_level": ("debug", "debug"),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("case", [str.upper, str.lower])
def test_a_variable_sets_its_field(name, case, monkeypatch):
    """Lists are separated by commas, without a need for JSON."""
    given, expected = EXAMPLES[name]
    monkeypatch.setenv(case(PREFIX + name), given)

    assert getattr(load_settings(), name) == expected


@pytest.mark.parametrize("name", FIELDS)
def test_an_empty_variable_is_as_good_as_none(name, monkeypatch):
    """Compose files and CI set variables to nothing when they mean nothing."""
    monkeypatch.setenv(PREFIX + name.upper(), "")

    assert load_settings() == Settings()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("ATTENTION_PROT", "did you mean ATTENTION_PORT?"),
        ("ATTENTION_MAX_TOKEN", "did you mean ATTENTION_MAX_TOKENS?"),
        ("attention_max_token", "did you mean ATTENTION_MAX_TOKENS?"),
        ("ATTENTION_ZZZZZZZZZZZZZZZZZZZZ", "known are ATTENTION_ACCESS_LOG, "),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_known_one(variable, hint, monkeypatch):
    """A setting that is silently ignored is found out in production (LitServe#751)."""
    monkeypatch.setenv(variable, "1")

    with pytest.raises(ConfigurationError) as error:
        load_settings()

    assert str(error.value).startswith(f"unknown setting {variable}; {hint}")


def test_variables_of_others_are_left_alone(monkeypatch):
    for name in ("ATTENTIONAL", "MY_ATTENTION_PORT", "PORT"):
        monkeypatch.setenv(name, "nonsense")

    assert load_settings() == Settings()


BAD = {
    "port": ["x", "-1", "65536", "8000.5"],
    "backend": ["tensorflow", "ONNX"],
    "device": ["gpu", "cuda:", "cuda:x", "cpu:0", " cpu", "cpu\n"],
    "compute_threads": ["-1"],
    "max_tokens": ["0", "-5", "many"],
    "max_batch_tokens": ["-1"],
    "max_inflight_mib": ["0"],
    "max_model_mib": ["0"],
    "request_timeout_ms": ["0", "1.5"],
    "body_timeout_s": ["0", "inf s"],
    "deterministic": ["perhaps"],
    "rate_limit": ["often", "100", "0/second", "1/second;10/minute"],
    "log_level": ["loud"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_refused_by_the_name_of_its_variable(name, value, monkeypatch):
    """It is what an operator has to mend; a field's name would send them searching."""
    monkeypatch.setenv(PREFIX + name.upper(), value)

    with pytest.raises(ConfigurationError) as error:
        load_settings()

    assert str(error.value).startswith(f"{PREFIX}{name.upper()}={value!r}: ")


def test_all_bad_values_are_named_at_once(monkeypatch):
    """One restart per mistake is slow."""
    monkeypatch.setenv("ATTENTION_PORT", "x")
    monkeypatch.setenv("ATTENTION_BACKEND", "y")

    with pytest.raises(ConfigurationError, match=r"ATTENTION_PORT='x': .*; ATTENTION_BACKEND='y': "):
        load_settings()


def test_the_command_line_beats_the_environment(monkeypatch):
    monkeypatch.setenv("ATTENTION_PORT", "9000")
    monkeypatch.setenv("ATTENTION_HOST", "0.0.0.0")

    settings = load_settings(port=9001, host=None)

    assert (settings.port, settings.host) == (9001, "0.0.0.0"), "None is what a flag holds that was not given"


def test_the_command_line_is_checked_as_the_environment_is():
    with pytest.raises(ConfigurationError, match=r"^ATTENTION_PORT=70000: "):
        load_settings(port=70_000)


def test_settings_do_not_change_after_the_start():
    with pytest.raises(ValidationError):
        Settings().port = 1


def test_keys_are_not_shown_where_settings_are():
    """They end up in logs."""
    keys = ("secret",)
    settings = Settings(api_keys=keys, admin_keys=keys, tutor_keys=keys, signing_key="secret")
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("given", [("a", "b"), ["a", "b"], "a,b"])
def test_a_list_may_be_given_as_one(given):
    assert Settings(cors_origins=given).cors_origins == ("a", "b")


def test_no_variable_of_whoever_runs_the_tests_is_seen():
    """What the fixture in conftest.py is for."""
    assert not [name for name in os.environ if name.startswith(PREFIX)]
