"""From what a model writes to content, reasoning and tool calls, while it is written. No HTTP here.

    traits = Traits(text_of_the_chat_template, special_tokens)
    parser = AnswerParser(family_of(traits), tools, thinking_of(traits), opened=...)
    for piece in pieces:
        events += parser.push(piece)
    events += parser.close()

`family.py` says what a family of models is, `registry.py` lists them, `answer.py` has the parser that reads any.
How the text is cut into pieces changes nothing but how the events are cut.

To add a family: a file with a `Family`, that is, how its chat template is known, the tags that open a block of calls,
and `read`, a generator that reads one block from a `Source` and tells `Calls` what it finds. It raises `NotACall` for
what is no call: the block is then content. One line in `registry.py`, a few in `tests/server/parsers/samples.py`.
"""
