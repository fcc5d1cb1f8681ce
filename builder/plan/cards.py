"""The arithmetic of one card: what weights and activations leave for the KV cache, and how many tokens that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.console import table
from builder.errors import UsageError
from builder.lint.command import number
from builder.lint.command import share as share_of
from builder.plan.pool import OCTAVE, OCTAVE_DIM, Blocks, Cells, head_bytes, sglang_cells, vllm_blocks
from builder.plan.shape import BYTES, Shape, gib

if TYPE_CHECKING:
    from builder.lint.command import Command

GIB = 1 << 30
# mem_info_vram_total of a Radeon RX 7900 XTX
CARD_BYTES = 25_753_026_560
# What a process holds before and beside the weights: HIP context, RCCL, workspaces. Field report S2 gives 9.70 GiB
# for "weights and base" where the weights of a card are 8.45.
VLLM_BASE = int(1.25 * GIB)
SGLANG_BASE = int(0.3 * GIB)
# Peak activation of S2: 2.41 GiB for 8,192 batched tokens of 5,120 numbers
ACTIVATION = 2.41 * GIB / (8192 * 5120)
# Graphs of S2: 0.67 GiB for the five batch sizes 1, 2, 4, 8 and 16
GRAPH = 0.67 * GIB / 5
SMALL_BATCH = 2048  # what S3 runs with
LAYERS = "attention layers, and the MTP head's when it drafts"
MANY_STATES = 8  # four requests and their copies
CONTEXTS = (8192, 32768, 65536, 131072, 196608, 262144)
UTILIZATION, FRACTION = 0.9, 0.9
# SGLang's figure came out 4 % below the field's: docs/plan.md
TOLERANCE = 0.05
SEQUENCES, BATCHED, STATES = 256, 8192, 20


class Term(NamedTuple):
    """One line of the arithmetic: a name, its bytes or number, and how it comes about."""

    name: str
    value: int
    how: str
    unit: str = "bytes"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What fits.

    Attributes:
        terms: The lines of the arithmetic.
        kv_tokens: KV tokens that fit.
        sequences: Contexts, each with how many sequences of it fit.
        advice: Which flags to change.
        fits: A request of the longest context fits, and the graphs do.
    """

    terms: tuple[Term, ...]
    kv_tokens: int
    sequences: tuple[tuple[int, int], ...]
    advice: tuple[str, ...]
    fits: bool

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return {
            "fits": self.fits,
            "kv_tokens": self.kv_tokens,
            "terms": {term.name: term.value for term in self.terms},
            "how": {term.name: term.how for term in self.terms},
            "sequences": [{"context": context, "sequences": count} for context, count in self.sequences],
            "advice": list(self.advice),
        }

    def text(self) -> str:
        """Return it for people."""
        rows = [(t.name, gib(t.value) if t.unit == "bytes" else f"{t.value:,}", t.how) for t in self.terms]
        fit = "  ".join(f"{count} x {context // 1024}K" for context, count in self.sequences)
        lines = [table(["term", "a card", "how"], rows), "", f"{self.kv_tokens:,} KV tokens: {fit}"]
        lines += [f"- {line}" for line in self.advice]
        return "\n".join([*lines, "fits" if self.fits else "does not fit"])


def on_vllm(command: Command, shape: Shape, drafter: Shape | None, card: int) -> Plan:
    """Return what fits on one card of ``card`` bytes under vLLM."""
    share = _share(command, "--gpu-memory-utilization", UTILIZATION)
    cards, drafted = whole(command, "--tensor-parallel-size", 1), command.drafted
    batched = whole(command, "--max-num-batched-tokens", BATCHED)
    seqs = whole(command, "--max-num-seqs", SEQUENCES)
    chosen = command.get("--max-model-len") in {"auto", "-1"}  # the engine's choice
    context = shape.context if chosen else whole(command, "--max-model-len", shape.context)
    dtype = command.get("--kv-cache-dtype") or "auto"
    weights, experts = _weights(command, shape, whole=False)
    activation = int(batched * shape.hidden * ACTIVATION)
    capture = (
        0
        if command.on("--enforce-eager")
        else whole(command, "--max-cudagraph-capture-size", 2 * seqs * (1 + drafted), least=0)
    )
    sizes = len(_captured(min(capture, 512)))
    graphs = int(sizes * GRAPH)
    draft = (drafter.card_bytes or 0) if drafter else 0
    given = whole(command, "--kv-cache-memory-bytes", 0, least=0)
    free = given or int(card * share) - weights - experts - VLLM_BASE - draft - activation
    caching = command.on("--enable-prefix-caching")

    def pool(kind: str, room: int) -> Blocks:
        return vllm_blocks(
            shape, cards=cards, dtype=kind, drafted=drafted, mtp=command.mtp, caching=caching, free=max(0, room)
        )

    blocks = pool(dtype, free)
    left = card - int(card * share)
    terms = (
        Term("budget", int(card * share), f"vram x {share:g} (--gpu-memory-utilization)"),
        Term("weights", weights, f"weights that are loaded / {cards} cards"),
        Term("experts", experts, "experts that stay on the card"),
        Term("base", VLLM_BASE, "context, RCCL, workspaces (from field report S2)"),
        Term("activation", activation, f"{batched:,} batched tokens x {shape.hidden} x {ACTIVATION:.1f} B"),
        Term("kv", free, "--kv-cache-memory-bytes" if given else "budget - weights - experts - base - activation"),
        Term("graphs", graphs, f"{sizes} batch sizes, outside the budget"),
        Term("rest", left - graphs, "vram - budget - graphs"),
        Term("head_bytes", head_bytes(dtype, shape.head_dim), f"{dtype}, head_dim {shape.head_dim}", "B"),
        Term("kv_layers", shape.attention_layers + (shape.mtp_layers if command.mtp else 0), LAYERS, "layers"),
        Term("block", blocks.block, "a recurrent state's bytes / a token's, in steps of 16", "tokens"),
        Term("block_bytes", blocks.block_bytes, "block x KV heads a card x head_bytes x layers of a group"),
        Term("blocks", blocks.count, "kv / block_bytes", "blocks"),
        Term(
            "request_blocks",
            blocks.needed(context),
            f"for {context:,} tokens; {blocks.state_blocks} of them hold states",
            "blocks",
        ),
        Term("kv_tokens", blocks.tokens(context), "blocks / request_blocks x context", "tokens"),
    )
    advice = _vllm_advice(blocks, context, seqs)
    if left < graphs:
        fitting = max(0.0, (card - graphs) / card - 0.005)
        advice.append(f"--gpu-memory-utilization {fitting:.2f}: graphs need {gib(graphs)} outside of it")
    if head_bytes(dtype, shape.head_dim) > OCTAVE["octave_k3v4"] and shape.head_dim == OCTAVE_DIM and not given:
        for other in ("int8_per_token_head", "octave_k3v4"):
            held = pool(other, free).tokens(context)
            if held > blocks.tokens(context):
                advice.append(f"--kv-cache-dtype {other} would hold {held:,} tokens (the fork's images)")
    if batched > SMALL_BATCH and not given:
        less = pool(dtype, free + int((batched - SMALL_BATCH) * shape.hidden * ACTIVATION)).tokens(context)
        advice.append(f"--max-num-batched-tokens {SMALL_BATCH} would hold {less:,} tokens, with slower prefill")
    return Plan(
        terms=terms,
        kv_tokens=blocks.tokens(context),
        sequences=tuple((length, blocks.sequences(length)) for length in CONTEXTS if length <= context),
        advice=tuple(advice),
        fits=blocks.count >= blocks.needed(context) and left >= graphs,
    )


def _vllm_advice(blocks: Blocks, context: int, seqs: int) -> list[str]:
    if blocks.count < blocks.needed(context):
        return [f"--max-model-len {blocks.longest()} is the longest that fits; {context:,} tokens do not"]
    if blocks.sequences(context) < seqs:
        return [f"{blocks.sequences(context)} of {seqs} sequences fit at {context:,} tokens; the others wait"]
    return []


def on_sglang(command: Command, shape: Shape, drafter: Shape | None, card: int) -> Plan:
    """Return what fits on one card of ``card`` bytes under SGLang."""
    share = _share(command, "--mem-fraction-static", FRACTION)
    cards = whole(command, "--tp-size", 1)
    running = whole(command, "--max-running-requests", 4)
    context = whole(command, "--context-length", shape.context)
    dtype = command.get("--kv-cache-dtype") or "auto"
    weights, experts = _weights(command, shape, whole=True)
    draft = (drafter.card_bytes or (drafter.checkpoint_bytes or 0) // cards) if drafter else 0
    budget = int((card - SGLANG_BASE) * share)
    ssm = BYTES.get(command.get("--mamba-ssm-dtype") or "float32", 4)
    verified = running * (command.drafted + 1) if command.drafted else 0
    cells = sglang_cells(
        shape,
        drafter,
        cards=cards,
        dtype=dtype,
        mtp=command.mtp,
        states=whole(command, "--max-mamba-cache-size", STATES),
        verified=verified,
        state_bytes=ssm,
        free=budget - weights - experts - draft,
    )
    room = budget - weights - experts - draft - cells.state_bytes
    terms = (
        Term("budget", budget, f"(vram - {gib(SGLANG_BASE)}) x {share:g} (--mem-fraction-static)"),
        Term("weights", weights + experts, "embedding and head whole, the rest / cards"),
        Term("drafter", draft, drafter.title if drafter else "none"),
        Term("states", cells.state_bytes, f"recurrent states; {verified} of them of drafted tokens"),
        Term("kv", room, "budget - weights - drafter - states"),
        Term("cell_bytes", cells.cell_bytes, "KV of a token over all layers, the drafter's too", "B"),
        Term("kv_tokens", cells.count, "kv / cell_bytes", "tokens"),
        Term("rest", card - budget, "vram - budget: activation, graphs, base"),
    )
    return Plan(
        terms=terms,
        kv_tokens=cells.count,
        sequences=tuple(
            (length, min(running, max(cells.count // length, int(cells.count >= length * (1 - TOLERANCE)))))
            for length in CONTEXTS
            if length <= context
        ),
        advice=tuple(_sglang_advice(command, cells, context)),
        fits=cells.count >= context * (1 - TOLERANCE),
    )


def _sglang_advice(command: Command, cells: Cells, context: int) -> list[str]:
    advice = []
    if context * (1 - TOLERANCE) <= cells.count < context * (1 + TOLERANCE):
        advice.append(f"{context:,} tokens are within 5 % of the pool: the log's line “#tokens” must not be below them")
    elif cells.count < context:
        advice.append(
            f"--context-length {cells.count // 4096 * 4096}: a request of {context:,} tokens is taken and then fails, "
            f"as the pool has {cells.count:,}"
        )
    if (command.number("--max-mamba-cache-size", STATES) or STATES) > MANY_STATES:
        advice.append("a smaller --max-mamba-cache-size frees room for tokens and keeps fewer prefixes")
    if (command.get("--mamba-ssm-dtype") or "float32") == "float32":
        advice.append("--mamba-ssm-dtype bfloat16 halves the recurrent states")
    return advice


def whole(command: Command, flag: str, default: int, *, least: int = 1) -> int:
    """Return a flag's whole number, or the default when the flag is missing.

    Raises:
        UsageError: It is no number, or less than ``least``.
    """
    text = command.get(flag)
    value = default if text is None else number(text)
    if value is None or value < least:
        raise UsageError(f"{flag} must be a whole number of at least {least}, found {text!r}")
    return value


def _weights(command: Command, shape: Shape, *, whole: bool) -> tuple[int, int]:
    """Return the bytes of weights and of resident experts on one card; ``whole``: embedding and head are not split."""
    loaded = (shape.checkpoint_bytes or 0) - (0 if command.mtp else shape.mtp_bytes)
    cache = command.environment.get("VLLM_MOE_EXPERT_CACHE_SIZE", "")
    experts = shape.expert_bytes // command.cards
    if cache.isdigit() and shape.experts:
        experts = experts * min(int(cache), shape.experts) // shape.experts
    kept = shape.embedding_bytes if whole else 0
    return (max(loaded - shape.expert_bytes, kept) - kept) // command.cards + kept, experts


def _share(command: Command, flag: str, default: float) -> float:
    text = command.get(flag)
    value = default if text is None else share_of(text)
    if value is None:
        raise UsageError(f"{flag} must be a number above 0 and at most 1, found {text!r}")
    return value


def _captured(largest: int) -> list[int]:
    """Return the batch sizes that vLLM captures up to ``largest``: 1, 2, 4, then every eighth."""
    return [size for size in (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)) if size <= largest]
