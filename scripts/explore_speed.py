"""How long the explorer takes from a slider to its new picture, how soon it is ready, and predict's pace.

    python scripts/explore_speed.py

It writes results/speed/explore-<cpu threads>.json: medians over sliders of the shipped network and of an
untrained one of the paper's size for MNIST, measured in Chromium from the slider's event to the drawn canvas,
how long the command takes to print its address, and how many PNG files a second are read and classified.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import mocapsnet as mc
from mocapsnet.cli import SHIPPED
from mocapsnet.measure.predict import predict
from mocapsnet.train.record import commit, hardware, versions

REPOSITORY = Path(__file__).parent.parent
MOVES = 60
MEASURE = """async (moves) => {
  const times = [], canvas = document.getElementById("moved");
  const sliders = document.querySelectorAll("#sliders input");
  for (let n = 0; n < moves; n++) {
    const slider = sliders[n % sliders.length], before = canvas.dataset.drawn, start = performance.now();
    slider.value = String(n % 2 ? -0.2 : 0.2);
    slider.dispatchEvent(new Event("input"));
    while (canvas.dataset.drawn === before) await new Promise((go) => setTimeout(go, 0));
    times.push(performance.now() - start);
    await new Promise((go) => setTimeout(go, 30));
  }
  return times;
}"""


def measure(page: Page, address: str) -> dict:
    page.goto(address)
    page.wait_for_selector("#moved[data-drawn]")
    ready = float(page.get_attribute("#moved", "data-drawn"))
    page.wait_for_timeout(2000)
    times = page.evaluate(MEASURE, MOVES)
    return {
        "ready_ms": round(ready, 1),
        "slider_ms_median": round(statistics.median(times), 1),
        "slider_ms_largest": round(max(times), 1),
        "moves": len(times),
    }


def images_per_second(run: str, pictures: Path) -> int:
    model, device = mc.load(run), torch.device("cpu")
    # Once unmeasured, as above.
    predict(model, [str(pictures)], device)
    return round(predict(model, [str(pictures)], device).images_per_second)


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        torch.manual_seed(0)
        mc.MoCapsNet((1, 28, 28), 10).save(folder)
        pictures = Path(folder) / "pictures"
        pictures.mkdir()
        for number, image in enumerate(mc.data.load("mnist6k").test.images):
            Image.fromarray(image[0].numpy()).save(pictures / f"{number}.png")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, run in ((SHIPPED, SHIPPED), ("MoCapsNet of the paper's size", folder)):
            command = [sys.executable, "-m", "mocapsnet.cli", "explore", run, "--port", "0"]
            started = time.perf_counter()
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
            try:
                address = re.search(r"http://\S+/", server.stdout.readline())[0]
                start = round(time.perf_counter() - started, 1)
                # Once unmeasured: the first question of a process waits for torch's own start.
                measure(browser.new_page(), address)
                results[name] = {"start_s": start, **measure(browser.new_page(), address)}
            finally:
                server.terminate()
                server.wait()
            results[name]["predict_images_per_second"] = images_per_second(run, pictures)
        browser.close()
    load = round(os.getloadavg()[0], 1)
    told = {"results": results, "load": load, "commit": commit(), "versions": versions()}
    told["hardware"] = hardware(torch.device("cpu"))
    path = REPOSITORY / "results" / "speed" / f"explore-cpu-{torch.get_num_threads()}-threads.json"
    path.write_text(json.dumps(told, indent=2) + "\n")
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
