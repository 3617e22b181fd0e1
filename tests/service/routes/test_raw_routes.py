"""Which raw route takes a path."""

from typing import Any

import pytest

from service.routes.base import RawRoutes


class Route:
    def __init__(self, path: str) -> None:
        self.path = path


ROUTES: Any = [
    Route("/v1/attention"), Route("/v2/models/{name}/infer"), Route("/v2/models/{name}/versions/{version}/infer"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "template", "parameters"),
    [
        ("/v1/attention", "/v1/attention", {}),
        ("/v2/models/lesson/infer", "/v2/models/{name}/infer", {"name": "lesson"}),
        ("/v2/models/a.b@1/infer", "/v2/models/{name}/infer", {"name": "a.b@1"}),
        ("/v2/models/x/versions/2/infer", "/v2/models/{name}/versions/{version}/infer", {"name": "x", "version": "2"}),
        ("/v2/models/{name}/infer", "/v2/models/{name}/infer", {"name": "{name}"}),
    ],
)
def test_a_template_takes_every_path_of_its_form(path: str, template: str, parameters: dict[str, str]):
    route, found = RawRoutes(ROUTES).find(path)

    assert route is not None
    assert route.path == template
    assert found == parameters


@pytest.mark.parametrize(
    "path",
    ["", "/", "/v1/attention/", "/v2/models//infer", "/v2/models/a/b/infer", "/v2/models/a/infer/",
     "/v2/models/a/infer\n", "/v2/models/a/versions//infer", "x/v2/models/a/infer"],
)  # fmt: skip
def test_any_other_path_is_not_taken(path: str):
    """A parameter is one segment, and never empty."""
    assert RawRoutes(ROUTES).find(path) == (None, {})
