"""The page on PyTorch Lightning: all its blocks as one program, if Lightning is installed."""

import os
import re
import subprocess
import sys

import pytest
from places import ROOT
from waits import PROGRAM_SECONDS

PAGE = (ROOT / "docs" / "how-to" / "lightning.md").read_text()
DEVICES = """
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
)
net = Sharded()
trainer.fit(net)
print(f"-- {net.feed.shard}, {trainer.global_step} steps", flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("more", "printed"),
    [
        ("", ["21 steps, accuracy 1.0", "21 steps in all; next: 3 0"]),
        (DEVICES, ["-- 0 of 2 (auto: torch.distributed), 3 steps", "-- 1 of 2 (auto: torch.distributed), 3 steps"]),
    ],
    ids=["one device", "two devices"],
)
def test_the_program_of_the_page_trains_and_resumes_where_it_was(tmp_path, more, printed):
    pytest.importorskip("lightning", reason="needs lightning, which is no dependency")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    if more:  # each device runs the program again
        blocks = [block for block in blocks if "trainer.fit" not in block or "class Net" in block]
        blocks = [block.split("\n\nwith make_feed(shuffle=True) as feed, make")[0] for block in blocks]
    path = tmp_path / "train.py"
    path.write_text("\n".join([*blocks, more]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", path.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for line in printed:
        assert line in done.stdout, done.stdout
