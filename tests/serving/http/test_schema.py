"""Requests that Schemathesis makes from the server's own description: whatever comes, no answer is the server's fault."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.serving.http.conftest import running

schemathesis = pytest.importorskip("schemathesis")
EXAMPLES = 8  # of each operation; more find nothing new: tests/serving/http/test_guard.py has the odd bodies


@pytest.fixture(scope="module")
def small(folder):
    with running(folder, max_body=20_000, max_sessions=500, max_choices=4) as one:
        yield one


def test_no_request_is_the_servers_fault(small):
    schema = schemathesis.openapi.from_url(f"{small.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 15
    for operation in operations:

        @given(case=operation.as_strategy(), few=st.just(2))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def asked(case, few):
            if isinstance(case.body, dict) and case.body.get("n") != 0:
                case.body.update({name: few for name in ("max_tokens", "max_output_tokens") if name in case.body})
            answer = case.call(base_url=small.url, timeout=60)
            assert answer.status_code < 500, (answer.status_code, case.as_curl_command(), answer.text[:500])
            if answer.status_code >= 400:
                assert answer.json()["error"]["message"]

        asked()
    assert small.ask("GET", "/health")[0] == 200
