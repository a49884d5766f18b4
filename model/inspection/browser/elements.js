// Everything that is shown is made here, and text only ever becomes text.

const $ = (id) => document.getElementById(id);

function element(name, fields = {}, ...children) {
  const { style, ...others } = fields;
  const node = Object.assign(document.createElement(name), others);
  Object.assign(node.style, style);
  node.append(...children);
  return node;
}

// Buttons of which one is pressed, each with its value in data-value; choose is called with the value.
function choices(parent, options, choose) {
  for (const [value, text, title = ""] of options) {
    const button = element("button", { textContent: text, title });
    button.dataset.value = value;
    button.addEventListener("click", () => choose(value));
    parent.append(button);
  }
}

function press(parent, value) {
  for (const button of parent.children) button.setAttribute("aria-pressed", button.dataset.value === String(value));
}
