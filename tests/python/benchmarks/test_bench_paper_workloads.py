"""The paper's workloads on the CPU: a tiny version of each runs, as far as its libraries are there,
and what is missing is named."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from benchmarks.paper import command  # noqa: E402
from benchmarks.paper.modes import loss_of  # noqa: E402
from benchmarks.paper.workloads import sources  # noqa: E402
from benchmarks.paper.workloads.catalogue import GROUPS, WORKLOADS, find  # noqa: E402
from benchmarks.paper.workloads.vision import best_detections  # noqa: E402
from benchmarks.paper.workloads.workload import Workload  # noqa: E402
from pygraph.demo.models import Unavailable  # noqa: E402

CPU = torch.device("cpu")
BATCHES = {
    ("huggingface", False): {"XLNET-I": 1, "MBERT": 128, "MTCG-I": 16, "DBV2": 1},
    ("huggingface", True): {
        **{"XLNET-T": 8, "MTCG-T": 16, "BSCG": 64},
        **{"DGPT2": 16, "STCLM": 256, "DMLM": 8},
    },
    ("torchbench", False): {
        **{"MMC": 1, "ST": 1, "DALLE2": 1, "EOS": 1048576, "TKE": 1048576, "VM": 1},
        **{"DR-I": 8192, "DLRM": 2048, "ALNET": 2, "DNET": 64},
    },
    ("torchbench", True): {"TEFD": 1, "DCGAN": 32, "BERT": 16, "DR-T": 256},
    ("timm", False): {"LCNET": 256},
}
ORDER = [
    *("XLNET-I", "MMC", "ST", "DALLE2", "EOS", "TKE", "VM", "DR-I", "XLNET-T", "MTCG-T", "DLRM"),
    *("MBERT", "TEFD", "ALNET", "DCGAN", "BERT", "LCNET", "DR-T", "DNET", "MTCG-I", "DBV2"),
    *("BSCG", "DGPT2", "STCLM", "DMLM"),
]


pytestmark = pytest.mark.usefixtures("one_thread")


def available(name: str) -> Workload:
    workload = WORKLOADS[name]
    if reason := sources.missing(workload.needs):
        pytest.skip(reason)
    return workload


def same(ones: Any, others: Any) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


# ------------------------------------------------------------------------------ the workloads


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_tiny_version_runs(name: str):
    workload = available(name)
    program = workload.make_program(CPU, tiny=True)
    inputs = workload.make_inputs(1, CPU, tiny=True)
    assert all(isinstance(each, torch.Tensor) for each in inputs)
    assert program.training == workload.training
    with torch.set_grad_enabled(workload.training):
        results = program(*inputs)
    assert isinstance(results, tuple) and results
    assert all(each.numel() and each.isfinite().all() for each in results)
    if workload.training:
        loss_of(results).backward()
        gradients = [weight.grad for weight in program.parameters() if weight.grad is not None]
        assert any(gradient.any() for gradient in gradients)
        assert all(gradient.isfinite().all() for gradient in gradients)
    if workload.compared:
        assert all(each.isfinite().all() for each in workload.compared(results))


@pytest.mark.parametrize("name", WORKLOADS)
def test_inputs_depend_on_the_seed_alone(name: str):
    workload = available(name)
    first, again, other = (workload.make_inputs(seed, CPU, tiny=True) for seed in (3, 3, 4))
    assert same(first, again)
    assert not same(first, other)
    assert [each.shape for each in first] == [each.shape for each in other]


@pytest.mark.parametrize("name", ["EOS", "BERT", "DLRM", "MBERT"])
def test_weights_and_results_are_always_the_same(name: str):
    workload = available(name)
    inputs = workload.make_inputs(0, CPU, tiny=True)
    ones, others = (workload.make_program(CPU, tiny=True).eval() for _ in range(2))
    assert same(list(ones.state_dict().values()), list(others.state_dict().values()))
    with torch.no_grad():
        results = [program(*inputs) for program in (ones, others)]
    assert same(*results)


def test_only_programs_that_draw_numbers_are_called_random():
    for name in ("XLNET-T", "XLNET-I", "STCLM", "DMLM", "BSCG", "DGPT2"):
        workload = available(name)
        program = workload.make_program(CPU, tiny=True)
        inputs = workload.make_inputs(0, CPU, tiny=True)
        torch.manual_seed(1)
        state = torch.get_rng_state()
        with torch.no_grad():
            program(*inputs)
        assert torch.equal(state, torch.get_rng_state()) != workload.random, name


def test_inputs_are_as_many_as_the_paper_counts():
    assert len(WORKLOADS["EOS"].make_inputs(0, CPU, tiny=True)) == 3
    assert len(WORKLOADS["TKE"].make_inputs(0, CPU, tiny=True)) == 21


def test_deberta_runs_under_autocast():
    workload = available("DMLM")
    program = workload.make_program(CPU, tiny=True)
    with torch.autocast("cpu", torch.bfloat16):
        results = program(*workload.make_inputs(0, CPU, tiny=True))
    loss_of(results).backward()
    assert results[0].isfinite().all()


def test_few_detections_compare_like_many():
    shapes = []
    for count in (0, 3, 12):
        corners = torch.rand(count, 2)
        boxes = torch.cat([corners, corners + 4], 1)
        scores = torch.linspace(1, 0.5, count)
        results = best_detections((boxes, torch.ones(count), scores, torch.zeros(count, 1, 2, 2)))
        assert results[0].item() == count
        assert results[2][: min(count, 10)].allclose(torch.tensor(4.0))
        shapes.append([each.shape for each in results])
    assert shapes[0] == shapes[1] == shapes[2]


# ------------------------------------------------------------------------------ the catalogue


def test_the_catalogue_is_the_papers_table():
    assert list(WORKLOADS) == ORDER
    table = {
        name: (suite, training, batch)
        for (suite, training), rows in BATCHES.items()
        for name, batch in rows.items()
    }
    assert {w.name: (w.suite, w.training, w.batch) for w in WORKLOADS.values()} == table
    assert all(w.source and w.deviation and w.needs for w in WORKLOADS.values())


def test_names_and_groups_are_found_in_the_tables_order():
    assert [w.name for w in find("dmlm, Eos,XLNET-i,EOS")] == ["XLNET-I", "EOS", "DMLM"]
    assert [w.name for w in find("timm,ST")] == ["ST", "LCNET"]
    assert find(None) == find("all") == find("inference,training") == list(WORKLOADS.values())
    for group in GROUPS:
        assert find(group) == [w for w in WORKLOADS.values() if group in w.groups]


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(KeyError, match=r"'resnet': there are XLNET-I.*DMLM.*training, all"):
        find("EOS,resnet")


# ------------------------------------------------------------------------------ the sources


@pytest.fixture
def no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv(sources.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pygraph" / "torchbench"


def test_what_is_missing_is_named(no_checkout: Path, monkeypatch: pytest.MonkeyPatch):
    assert sources.missing(("torch",)) is None
    library = sources.missing(("torch", "no_such_library"))
    assert library and library.startswith("no_such_library: ")
    assert sources.torchbench() is None
    checkout = sources.missing(("torchbench",))
    assert checkout and str(no_checkout) in checkout and sources.VARIABLE in checkout
    with pytest.raises(Unavailable, match="TorchBench"):
        WORKLOADS["EOS"].make_program(CPU, tiny=True)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Unavailable, match=r"^transformers: .*bench --list"):
        WORKLOADS["DMLM"].make_program(CPU, tiny=True)


def test_what_to_install_comes_from_the_distribution(monkeypatch: pytest.MonkeyPatch):
    """Not from a file of the checkout, which a wheel does not have."""
    listed = [
        "torch<3",
        'here>=1; extra == "bench"',
        "torchvision; extra == 'bench'",
        "not-here<2,>=1; extra == 'bench'",
        'nor_this; extra == "demo"',
        'pytest; extra == "test"',
    ]

    def version(name: str) -> str:
        if name == "here":
            return "1"
        raise sources.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(sources.metadata, "requires", lambda name: listed)
    monkeypatch.setattr(sources.metadata, "version", version)
    assert sources.how_to_install() == [
        "pip install nor_this",
        "pip install --no-deps 'not-here<2,>=1'",
        "torchvision: the release for your torch, as pytorch.org/get-started says",
    ]


def test_the_list_names_nothing_that_a_wheel_lacks(
    no_checkout: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sources, "how_to_install", lambda: ["pip install this"])
    monkeypatch.setitem(sys.modules, "transformers", None)
    console = Console(width=160, record=True, file=io.StringIO())
    command.listing(console)
    text = console.export_text()
    assert "tools/" not in text and "pip install this" in text
    # In the table the missing thing's name, and what was found once below.
    assert text.count("TorchBench: not found in") == text.count("transformers: import of") == 1


def test_a_folder_that_is_no_checkout_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path))
    with pytest.raises(sources.NoCheckout, match=sources.VARIABLE):
        sources.torchbench()
    missing = sources.missing(("torchbench",))
    assert missing and str(tmp_path) in missing
    (tmp_path / sources.ROOT).mkdir()
    assert sources.torchbench() == tmp_path
    incomplete = sources.missing(("torchbench",))
    assert incomplete and sources.FOLDERS[0] in incomplete


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_only_the_needed_folders_are_fetched(
    no_checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    origin = tmp_path / "origin"
    for folder in (*sources.FOLDERS, "models/other"):
        (origin / sources.ROOT / folder).mkdir(parents=True)
        (origin / sources.ROOT / folder / "model.py").write_text("WIDTH = 3\n")
    git(origin, "init", "--quiet")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "models")
    monkeypatch.setattr(sources, "TORCHBENCH_URL", origin.as_uri())
    monkeypatch.setattr(sources, "TORCHBENCH_COMMIT", git(origin, "rev-parse", "HEAD"))
    said: list[str] = []
    assert sources.obtain(said.append) == no_checkout
    assert len(said) == 1 and str(no_checkout) in said[0]
    assert sources.missing(("torchbench",)) is None
    assert not (no_checkout / sources.ROOT / "models" / "other").exists()
    assert list(no_checkout.parent.iterdir()) == [no_checkout]
    assert sources.obtain(said.append) == no_checkout and len(said) == 1


def test_a_fetch_that_fails_says_why(
    no_checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(sources, "TORCHBENCH_URL", (tmp_path / "nowhere").as_uri())
    with pytest.raises(sources.NoCheckout, match=rf"git fetch.*nowhere.*{sources.VARIABLE}"):
        sources.obtain(lambda _: None)
    assert not list(no_checkout.parent.iterdir())
    monkeypatch.setattr(sources.shutil, "which", lambda _: None)
    with pytest.raises(sources.NoCheckout, match="git is not installed"):
        sources.obtain(lambda _: None)


@pytest.fixture
def fake_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A model whose packages' `__init__` modules cannot run."""
    model = tmp_path / sources.ROOT / "models" / "some_model"
    model.mkdir(parents=True)
    for folder in (model, model.parent, model.parent.parent):
        (folder / "__init__.py").write_text("raise RuntimeError('the harness')\n")
    (model / "net.py").write_text("import no_such_library.part\nfrom . import sizes\n")
    (model / "sizes.py").write_text("WIDTH = 3\n")
    monkeypatch.setenv(sources.VARIABLE, str(tmp_path))
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _of_torchbench(name)}
    yield f"{sources.ROOT}.models.some_model.net"
    for name in [name for name in sys.modules if _of_torchbench(name)]:
        del sys.modules[name]
    sys.modules.update(before)


def _of_torchbench(name: str) -> bool:
    return name.split(".")[0] == sources.ROOT


def test_only_model_files_are_run(fake_checkout: str):
    with pytest.raises(ModuleNotFoundError):
        sources.torchbench_module(fake_checkout)
    module = sources.torchbench_module(fake_checkout, ("no_such_library", "no_such_library.part"))
    assert module.sizes.WIDTH == 3
    assert Path(module.__file__).name == "net.py"
    assert "no_such_library" not in sys.modules
