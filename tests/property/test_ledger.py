"""The ledger's invariants under random histories, against a naive list of (id, trained) pairs."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.journals import entry_document, parse_entry

from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_common.tokens.segments import SegmentKind

IDS = st.lists(st.integers(0, 3), max_size=5)  # few distinct ids, so that differing contexts share prefixes
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("sample"), IDS, st.booleans()),
        st.tuples(st.sampled_from(["glue", "close"]), IDS, st.none()),
        st.tuples(st.just("echo"), st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 30)),
    ),
    max_size=25,
)


class Model:
    """What the ledger must say, computed without segments, hashes or shared prefixes."""

    def __init__(self, prompt: list[int]) -> None:
        self.context = [(i, False, False) for i in prompt]  # id, sampled, trained
        self.head = 0
        self.closed: list[list[tuple[int, bool, bool]]] = []
        self.trained: list[int] = []

    def sample(self, ids: list[int], train: bool) -> None:
        self.context += [(i, True, train) for i in ids]
        self.head = len(self.context)
        self.trained += ids if train else []

    def echo(self, ids: list[int]) -> EchoKind:
        ours = [i for i, _, _ in self.context]
        if ours == ids:
            return EchoKind.EQUAL
        if ours[: self.head] == ids[: self.head]:
            self.context = self.context[: self.head] + [(i, False, False) for i in ids[self.head :]]
            return EchoKind.TAIL
        self.closed.append(self.context[: self.head])
        self.context, self.head = [(i, False, False) for i in ids], 0
        return EchoKind.FORK

    def samples(self) -> list[list[tuple[int, bool, bool]]]:
        return [s for s in (*self.closed, self.context[: self.head]) if any(sampled for _, sampled, _ in s)]


@settings(max_examples=examples(300, 1000), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), STEPS)
def test_ledger_agrees_with_the_naive_model(prompt: list[int], steps: list[tuple[str, list[int], int | None]]) -> None:
    ledger, model = TokenLedger(), Model(prompt)
    ledger.seed(prompt)
    for turn, (what, ids, extra) in enumerate(steps, start=1):
        if what == "sample":
            ledger.append_sampled(ids, [-float(turn)] * len(ids), turn=turn, train=bool(extra))
            model.sample(ids, bool(extra))
        elif what == "echo":
            echo = [*[i for i, _, _ in model.context][:extra], *ids]
            assert ledger.compare(echo).kind is model.echo(echo)
            ledger.accept_echo(echo)
        else:
            getattr(ledger, f"append_{what}")(ids, turn=turn)
            model.context += [(i, False, False) for i in ids]

        assert ledger.ids == [i for i, _, _ in model.context]
        assert ledger.mask == [int(trained) for _, _, trained in model.context]
        assert len(ledger.mask) == len(ledger.ids) == len(ledger)
        assert ledger.head == model.head
        position = 0
        for segment in ledger.segments:
            assert segment.start == position
            assert segment.n > 0
            assert len(segment.logprobs) == (segment.n if segment.kind is SegmentKind.SAMPLED else 0)
            position = segment.end
        assert position == len(ledger)

    samples = ledger.samples()
    assert len(samples) == len(model.samples())
    covered = []
    for sample, expected in zip(samples, model.samples(), strict=True):
        rows = len(sample.response_ids)
        assert rows == len(sample.response_mask) == len(sample.response_logprobs) == sum(s.n for s in sample.segments)
        last = max(i for i, (_, sampled, _) in enumerate(expected) if sampled)
        assert [*sample.prompt_ids, *sample.response_ids] == [i for i, _, _ in expected[: last + 1]]
        assert [*[0] * len(sample.prompt_ids), *sample.response_mask] == [int(t) for _, _, t in expected[: last + 1]]
        assert all((p != 0.0) == bool(m) for p, m in zip(sample.response_logprobs, sample.response_mask, strict=True))
        covered += [i for i, m in zip(sample.response_ids, sample.response_mask, strict=True) if m]
    assert covered == model.trained

    journal = [parse_entry(entry_document(entry)) for entry in ledger.entries]
    replayed = TokenLedger.replay(journal)
    assert replayed == ledger
    assert replayed.samples() == samples
