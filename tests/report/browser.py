"""Opens pages in Chromium, for tests: a probe behind the page's own script says what the page shows."""
import html
import html.parser
import json
import re
import shutil
import subprocess
import sys
import tempfile

# A frame may be narrower than a browser's smallest window.
FRAME = """<!doctype html><body style="margin:0"><iframe src="{page}" style="border:0;display:block;width:{width}px;height:{height}px"></iframe>
<script>addEventListener("message", (event) => {{
  const seen = document.createElement("pre");
  seen.id = "seen";
  seen.textContent = event.data;
  document.body.append(seen);
}});</script></body>"""


class Links(html.parser.HTMLParser):
    """Finds everything that the page would fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "href", "srcset", "action", "data") and not re.match(r"#|data:", value or ""):
                self.found.append((tag, name, value))


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return None


def options_of(chromium, profile):
    return [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}"]


def starts(chromium):
    """Some containers forbid what a browser needs."""
    with tempfile.TemporaryDirectory() as profile:
        try:
            shown = subprocess.run(options_of(chromium, profile) + ["--dump-dom", "data:text/html,<p>shown</p>"],
                                   capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return "<p>shown</p>" in shown.stdout


def shown_by(command):
    """Runs the browser, and again if it hangs, as it does in rare cases, on any page."""
    for timeout in (120, 240):
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as hung:
            last = hung
    raise last


def browse(chromium, page, probe, width, height=1000, screenshot=None, dark=False):
    """Returns (the probe's findings, the browser's console). probe: a script that sends its findings to the parent."""
    probed, framed = page.with_suffix(".probe.html"), page.with_suffix(".frame.html")
    probed.write_text(page.read_text().replace("</body>", f"<script>{probe}</script></body>"))
    framed.write_text(FRAME.format(page=probed.as_uri(), width=width, height=height))
    with tempfile.TemporaryDirectory() as profile:
        options = options_of(chromium, profile) + [f"--window-size={width},{height}", "--enable-logging=stderr",
                                                   "--virtual-time-budget=4000", "--timeout=60000"]
        if dark:
            options.append("--blink-settings=preferredColorScheme=0")
        dumped = shown_by(options + ["--dump-dom", framed.as_uri()])
        if screenshot:
            shown_by(options + [f"--screenshot={screenshot}", framed.as_uri()])
    found = re.search(r'<pre id="seen">(.*?)</pre>', dumped.stdout, re.S)
    if not found:
        sys.exit(f"the probe did not run: {dumped.stdout[-500:]}\n{dumped.stderr[-2000:]}")
    seen = json.loads(html.unescape(found.group(1)))
    if seen["width"] != width:
        sys.exit(f"expected a page of {width} pixels, found {seen['width']}")
    return seen, [line for line in dumped.stderr.splitlines() if "CONSOLE" in line]


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def chromium_for_tests():
    """Returns Chromium, or ends the test as skipped."""
    chromium = find_chromium()
    if not chromium:
        sys.exit(print("SKIPPED: no chromium here: apt-get install chromium"))
    if not starts(chromium):
        sys.exit(print(f"SKIPPED: {chromium} shows no page on this machine"))
    return chromium


def links_of(text):
    """Returns everything that a page would fetch."""
    links = Links()
    links.feed(text)
    return links.found
