"""Makes texts of untrusted origin safe to show: in a terminal, in a log, on a page, to a language model.

What a candidate, its compiler or a task printed may hold escape sequences that rewrite a terminal, marks that hide or
reorder code, and the markup with which chat templates end a message.
"""

import re

#: control characters without tabs and line ends: an escape sequence could rewrite earlier output.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: marks that reorder or hide the text around them: code could look different from what runs.
_HIDDEN = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

#: how chat templates and tagged tool calls begin and end a part: `<|im_end|>`, `</tool_response>`, `</s>`, `[/INST]`.
_MARKUP = re.compile(
    r"<(?=\s*(?:[|\uff5c]|/?\s*(?:tool_|think>|im_|bos>|eos>|(?:start|end)_of_|system>|assistant>|user>)|/\s*s>))"
    r"|\[(?=/?(?:INST|TOOL_RESULTS|TOOL_CALLS|AVAILABLE_TOOLS|SYSTEM_PROMPT)\])"
)


def plain(text: str) -> str:
    """Removes control characters, so that a candidate's output can't control the terminal, and names marks that reorder
    or hide text (`[U+202E]`)."""
    text = _CONTROLS.sub("�", text.replace("\r\n", "\n"))
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def for_model(text: str) -> str:
    """Returns a plain text in which no markup can end a message of a conversation or begin another one."""
    return _MARKUP.sub(lambda found: "&lt;" if found[0] == "<" else "&#91;", plain(text))
