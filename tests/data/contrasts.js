// Texts that stand out from their ground by less than `least` (WCAG 2.1), as [element, class, text, ratio].
(least) => {
  const numbers = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const linear = (value) => (value <= 10.31 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  const ground = (element) => {
    for (let above = element; above; above = above.parentElement) {
      const colour = numbers(getComputedStyle(above).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const says = Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
    if (!says || element.disabled || ["SCRIPT", "STYLE", "title"].includes(element.tagName)) continue;
    if (!element.checkVisibility({ visibilityProperty: true })) continue;
    const style = getComputedStyle(element);
    const one = light(numbers(element.namespaceURI.includes("svg") ? style.fill : style.color));
    const other = light(ground(element));
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const name = element.className.baseVal ?? element.className;
    if (ratio < least) found.push([element.tagName, name, element.textContent.slice(0, 30), ratio.toFixed(2)]);
  }
  return found;
}
