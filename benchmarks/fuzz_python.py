"""Misuse of the Python API for fuzz.py: wrong types, shapes, devices and values, pickling and threads."""

import re
import sys
from collections.abc import Iterator

from fuzz_files import Case

PRELUDE = """
import copy, math, pickle, threading
from pathlib import Path
import numpy as np, torch
import tmatch as tm
from tmatch.pipeline import Pipeline
nan, inf = math.nan, math.inf
def pipe(name="shapes-fm"):
    return Pipeline.from_pretrained(name)
def call(prompt="a red circle", **options):
    result = pipe()(prompt, **{"num_inference_steps": 2, "output_type": "pt", **options})
    assert torch.isfinite(result.tensors).all() and result.tensors.std() > 0
    return result
def image(p, seed=1):
    return p("a red circle", seed=seed, num_inference_steps=4, output_type="pt").tensors
def model(name="dtm", **options):
    backbone = tm.MLP(grid=(1,), channels=2) if name in ("dtm", "fm") else tm.DiT(2, 16, 1, 2)
    return tm.build(name, backbone, channels=2, head=tm.HeadConfig(width=16, depth=1), **options)
def loss(x=None, rng=None, condition=None, name="dtm"):
    x = torch.randn(4, 1, 2) if x is None else x
    return model(name)(x, tm.RandomStreams(range(4)) if rng is None else rng, condition)
def sample(shape=(1, 2), seeds=range(2), **options):
    result = tm.generate(model(), shape, seeds, **options)
    assert torch.isfinite(result.x).all()
    return result
"""
ERRORS = (
    # the pipeline
    *(f"pipe({name!r})" for name in ("nope", "", "/nowhere", "../nowhere", "a/b/c", "hf:", "\x1b[2J", "a\0b")),
    "pipe(3)", "pipe(None)", "Pipeline.from_pretrained('shapes-fm', dtype=torch.int8)",
    "Pipeline.from_pretrained('shapes-fm', dtype='x')",
    *(f"call({prompt})" for prompt in ("''", "[]", "None", "3", "b'x'", "['a', None]", "'\\ud800'", "{}",
    "torch.zeros(3)", "[['a']]", "' '")),
    *(f"call(seed={seed})" for seed in ("1.5", "'x'", "2**70", "-2**70", "[1, 2]", "nan", "torch.tensor([1.5])",
    "[2**70]", "['x']", "[1.5]")),
    *(f"call(num_inference_steps={n})" for n in ("0", "-1", "1.5", "'x'", "10**12", "nan", "True")),
    *(f"call(guidance_scale={w})" for w in ("nan", "inf", "'x'", "1e39", "1j")),
    *(f"call(num_images_per_prompt={n})" for n in ("0", "-1", "1.5", "10**12", "'x'")),
    *(f"call(batch_size={n})" for n in ("0", "-1", "None", "1.5")),
    *(f"call(height={n})" for n in ("0", "-8", "33", "1.5", "'x'", "2**40")), "call(output_type='x')", "call(nope=3)",
    "call(negative_prompt=3)", "call(negative_prompt='\\ud800')",
    "call(generator=torch.Generator(), seed=1)", "call(generator=[])", "call(head_steps=3)", "call(sampler='nope')",
    "call(sampler='ddim:nan')", "call(solver=3)", "pipe().to('nope')", "pipe().to('meta')", "pipe().to('cuda:99')",
    "pipe().to(3)", "pipe().to(dtype=torch.float16)", "pipe().save_pretrained('')",
    "Path('f').write_text('x'); pipe().save_pretrained('f')", "pipe().save_pretrained('x', dtype=torch.int8)",
    # losses
    *(f"loss({x})" for x in ("[[1.0, 2.0]]", "np.zeros((4, 1, 2))", "torch.zeros(4, 1, 2, dtype=torch.complex64)",
    "torch.full((4, 1, 2), nan)", "torch.full((4, 1, 2), inf)",
      "torch.zeros(4, 1, 3)", "torch.zeros(4, 2)", "torch.zeros(0, 1, 2)", "torch.zeros(3, 1, 2)",
      "torch.zeros(4, 1, 2, device='meta')")),
    *(f"loss(rng={rng})" for rng in ("3", "torch.Generator()", "'x'", "tm.RandomStreams(range(3))")),
    "loss(condition='a red circle')", "loss(condition=torch.zeros(4, 3))",
    "loss(condition=tm.Condition(torch.zeros(2, 3, 8), torch.ones(2, 3, dtype=torch.bool)))",
    # samples
    *(f"sample(seeds={seeds})" for seeds in ("3", "[]", "[1.5]", "['x']", "[2**70]", "torch.tensor([1.5])", "[[1]]",
    "None", "torch.zeros(2, 2, dtype=torch.int64)", "'ab'", "[True, nan]", "np.array([1.5])")),
    *(f"sample({shape})" for shape in ("(1, 3)", "(0, 2)", "(-1, 2)", "()", "(1, 2, 3)")),
    *(f"sample(steps={n})" for n in ("0", "-1", "1.5", "'x'", "10**12", "[1, 0]", "[0, nan, 1]", "[]", "[0, 2]",
    "torch.tensor(1j)", "['x']", "[0, 0.5]")),
    "sample(batch_size=0)", "sample(batch_size='x')", "sample(sampler='ddim')", "sample(precision='x')",
    "sample(condition=torch.zeros(2, 1, 8))", "sample(shape=(1, 2), seeds=range(2), nope=3)",
    # parts
    *(f"tm.Euler({n})" for n in ("0", "-1", "1.5", "'x'", "2**70")), *(f"tm.Grid({p})" for p in ("()", "(0, 1, 0.5)",
    "(0.1, 1)", "(0, nan, 1)")), "tm.Grid.uniform(10**12)", "tm.Continuous(steps=0)",
    "tm.LogitNormal(nan, 1)",
    "tm.RestartSampler(((0.2, 0.8, 1),))", "tm.RestartSampler('x')", "tm.DDIMSampler(nan)",
    "tm.build_sampler('restart:1')", "tm.build('nope', tm.MLP(grid=(1,), channels=2), channels=2)",
    "tm.build('dtm', None, channels=2)",
    "tm.build('dtm', torch.nn.Linear(2, 2), channels=2)", "tm.build('dtm', tm.MLP(grid=(1,), channels=2), channels=0)",
    "tm.build('dtm', tm.MLP(grid=(1,), channels=2), channels=3)(torch.randn(4, 1, 2), tm.RandomStreams(range(4)))",
    "tm.variant('nope')",
    "tm.DiT(2, 15, 1, 2)", "tm.DiT(2, 16, 1, 0)", "tm.DiT(2, 0, 1, 1)", "tm.DiT(2, 16, -1, 2)", "tm.Llama(2, 15, 1, 2)",
    "tm.HeadConfig(width=0)", "tm.HeadConfig(width='x')", "tm.HeadConfig(token_fraction=nan)", "tm.HeadConfig(nope=3)",
    "tm.Condition(torch.zeros(2, 3), torch.ones(2, 3))", "tm.Condition([[1.0]], None)",
    "tm.Condition(torch.zeros(2, 3, 8), torch.ones(2, 4, dtype=torch.bool))", "tm.CodeSampling(top_p=nan)",
    "tm.CodeSampling(temperature=nan)", "tm.CodeSampling(top_k=0)", "tm.Unmasking(iterations=0)",
    "tm.Unmasking(order='x')",
    "tm.RandomStreams([2**70])", "tm.RandomStreams('ab')", "tm.RandomStreams([])", "tm.RandomStreams(3)",
    "tm.Patchify((0, 1))", "tm.Patchify((2, 2)).encode(torch.zeros(1, 4, 3, 3))", "tm.Patchify('x')",
    "tm.Patchify((2, 2)).encode(np.zeros((1, 4, 4, 4)))", "tm.ClassifierFreeGuidance(None, nan)",
)  # fmt: skip
WORKS = {
    "a NumPy integer as seed": "assert torch.equal(call(seed=np.int64(3)).tensors, call(seed=3).tensors)",
    "a tensor of one integer as seed": "assert torch.equal(call(seed=torch.tensor(3)).tensors, call(seed=3).tensors)",
    "negative seeds": "assert not torch.equal(call(seed=-1).tensors, call(seed=0).tensors)",
    "the largest seed": "call(seed=2**63 - 1)", "a tuple of prompts": "assert len(call(('a', 'b')).tensors) == 2",
    "a generator of prompts": "assert len(call(x for x in 'ab').tensors) == 2",
    "a prompt of a million characters": "call('red ' * 250_000)", "a prompt with NUL": "call('a\\0b')",
    "negative guidance": "call(guidance_scale=-3.0)",
    "float64 weights": "x = torch.randn(4, 1, 2).double(); rng = tm.RandomStreams(range(4), dtype=torch.float64); "
    "assert model().double()(x, rng).dtype == torch.float64",
    "no gradient": "p = pipe()\nwith torch.inference_mode(): assert p('a red circle', num_inference_steps=2).images",
    "default dtype": "torch.set_default_dtype(torch.float64)\ncall()",
    "a copy": "p = pipe(); assert torch.equal(image(p), image(copy.deepcopy(p)))",
    "pickle": "assert pickle.dumps(pipe())",
    "training mode": "p = pipe(); a = image(p); p.networks.train(); assert torch.equal(a, image(p))",
    "saved and loaded": "p = pipe(); p.save_pretrained('x'); assert torch.equal(image(p), image(pipe('x')))",
    "the global generator": "torch.manual_seed(0); a = torch.rand(3); torch.manual_seed(0); call(); "
    "assert torch.equal(a, torch.rand(3))",
    "integers as data": "m, x = model(), torch.ones(4, 1, 2); rng = lambda: tm.RandomStreams(range(4)); "
    "assert torch.equal(m(x, rng()), m(x.long(), rng()))",
    "changed arguments": "prompts, seeds = ['a red circle'], [3]; call(prompts, seed=seeds); "
    "assert (prompts, seeds) == (['a red circle'], [3])",
    "eight threads": """
p = pipe(); found = {}
def work(k): found[k] = image(p, k)
threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for t in threads: t.start()
for t in threads: t.join()
for k in range(8): assert torch.equal(found[k], image(p, k)), k
""",
    "threads of different precision": """
p = pipe(); alone = image(p); found = []
q = copy.copy(p); q.precision = 'bfloat16'
def work(x): found.append((x is p, image(x)))
threads = [threading.Thread(target=work, args=(x,)) for x in (p, q) * 4]
for t in threads: t.start()
for t in threads: t.join()
assert len(found) == 8 and all(torch.equal(image, alone) for float32, image in found if float32)
""",
}  # fmt: skip


def run_code(code: str) -> None:
    """Run a snippet; an error that explains the mistake is printed as the command line would print it."""
    try:
        exec(compile(PRELUDE + code, "snippet", "exec"), {"__name__": "snippet"})
    except (ValueError, TypeError, RuntimeError) as error:
        if not isinstance(error, ValueError) and not _by_design(error):
            raise
        print(f"tmatch: {' '.join(str(error).split())!r}", file=sys.stderr)
        sys.exit(2)
    except AssertionError as error:
        print(f"tmatch: fuzz: the result is wrong {error}", file=sys.stderr)
        sys.exit(3)


def _by_design(error: TypeError | RuntimeError) -> bool:
    """Whether Python refused the arguments of a call, or PyTorch tensors on two devices, both of which it names."""
    if isinstance(error, RuntimeError):
        return re.search(r"on device \w+ is not on .* device \w+|Expected all tensors", str(error)) is not None
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    name = trace.tb_frame.f_code.co_filename
    return name == "snippet" and "argument" in str(error)


def python_cases() -> Iterator[Case]:
    for code in ERRORS:
        yield Case("Python", code, code=code)
    for name, code in WORKS.items():
        yield Case("Python", name, code=code, expect="any" if name == "pickle" else "ok")
