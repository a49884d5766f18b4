"""Actions of a user in a page: click, press, slide, point; and what the page then shows."""

import re
from urllib.parse import parse_qs


def in_page(page, module, expression):
    """The value of an expression on the exports of a module of the page."""
    return page.evaluate(f"import('browser/{module}.js').then((module) => module.{expression})")


# Ends when everything is drawn and, in the page of a model, the worker has had no question for a while.
SETTLED = """async () => {
  const render = await import("browser/render.js");
  const patience = document.getElementById("weights-0") ? 3 : 0;
  const settled = async () => {
    await render.rendered;
    for (let quiet = 0; quiet < patience; await render.rendered) {
      await new Promise((done) => setTimeout(done, 10));
      quiet = document.getElementById("main").ariaBusy === "true" ? 0 : quiet + 1;
    }
  };
  let clock;
  const late = new Promise((_, fail) => (clock = setTimeout(fail, 30_000, Error("the page does not settle"))));
  await Promise.race([settled(), late]).finally(() => clearTimeout(clock));
}"""


def settle(page):
    """Waits until the page has drawn the last change."""
    page.locator("html[data-drawn]").wait_for(state="attached")
    page.evaluate(SETTLED)


def until(page, expression, argument=None):
    """Waits until JavaScript is true. wait_for_function would poll by eval, which a page's policy forbids."""
    for _ in range(1000):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(20)
    raise AssertionError(expression)


def wait_for(page, selector, text):
    """Waits until an element contains a text and the page is drawn."""
    page.locator(selector, has_text=text).wait_for()
    settle(page)


def click(page, selector):
    page.click(selector)
    settle(page)


def press(target, *keys):
    """Presses keys in a page or an element."""
    page = getattr(target, "page", target)
    for key in keys:
        (page.keyboard if page is target else target).press(key)
    settle(page)


def put(page, selector, value):
    """Sets the value of an input at once, even if it is no text field."""
    set_value = "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')) }"
    page.eval_on_selector(selector, set_value, value)
    settle(page)


def slide(page, at, which="#slide-a"):
    put(page, f"{which} input", at)


def colours(elements):
    """The background of each element: red, green and blue, and the opacity if it is not 1."""
    styles = elements.evaluate_all("all => all.map((e) => getComputedStyle(e).backgroundColor)")
    return [[float(x) for x in re.findall(r"[\d.]+", style)] for style in styles]


def shares(sentence):
    """The percentages in a sentence, as shares of 1."""
    return [float(number) / 100 for number in re.findall(r"([\d.]+)%", sentence)]


def address(page):
    """The view that the address of a page holds."""
    return {name: values[0] for name, values in parse_qs(page.url.partition("#")[2]).items()}


def number_in(text):
    """Reads a number of the page, which writes a typographic minus sign."""
    return float(text.replace("−", "-"))


def place(page, query, key):
    """The middle of a square of the map, in coordinates of the window."""
    geometry = in_page(page, "render", "shown.geometry")
    box = page.locator("#over").bounding_box()
    cell = geometry["side"] / geometry["length"]
    top = box["height"] - geometry["side"] - geometry["room"]
    return box["x"] + geometry["room"] + (key + 0.5) * cell, box["y"] + top + (query + 0.5) * cell


def point_at(page, query, key):
    page.mouse.move(*place(page, query, key))


def resize(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    # Two frames later the page has noticed.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    settle(page)


def unnamed(page):
    """The visible controls and parts of a page that a screen reader could not name."""
    return page.evaluate("""() => {
      const kinds = "button, select, input, textarea, table.lens, section, nav, [tabindex]";
      const visible = [...document.querySelectorAll(kinds)].filter((e) => e.checkVisibility());
      const named = (e) => e.ariaLabel || e.textContent.trim() || e.labels?.length || e.getAttribute("aria-labelledby");
      return visible.filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 80));
    }""")
