"""Which bodies of `POST /rollout` are looked at twice."""

from rolloutpool_api.routes.by_wire import names_other_wire


def test_only_bodies_that_name_a_field_are_looked_at_twice() -> None:
    assert names_other_wire(b'{"chat_completions_url": 1}')
    assert names_other_wire(b'{"initial_messages": 1}')
    assert not names_other_wire(b'{"server_url": "http://x", "messages": []}')
