"""How deep the tuples of a pickle nest, read off its instructions while nothing is built.

C code that calls itself hashes a tuple in a tuple in a tuple, and counts nothing: a million of them as a key end the
process without a word. Whatever else nests too deep is an error that Python raises.
"""

from __future__ import annotations

import pickle
import pickletools

__all__ = ["check_nesting"]

MOST = 32
"""Tuples within one another; those of a checkpoint hold one another twice."""

TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
GETS = ("BINGET", "LONG_BINGET", "GET")
PUTS = ("BINPUT", "LONG_BINPUT", "PUT")


def _effect(opcode: pickletools.OpcodeInfo) -> tuple[int, bool, int, int]:
    """What an instruction does to the stack of values.

    Returns:
        How many it takes from the end, or from beneath the last mark; whether it takes all above that mark too; how
        many it leaves; and 1 where that is a tuple of those that it took.
    """
    before, mark = list(opcode.stack_before), pickletools.markobject
    takes = before.index(mark) if mark in before else len(before)
    return takes, mark in before, len(opcode.stack_after), int(opcode.name in TUPLES)


EFFECTS = {opcode.name: _effect(opcode) for opcode in pickletools.opcodes}


def check_nesting(content: bytes) -> None:
    """Refuse a pickle that may end the process.

    Raises:
        pickle.UnpicklingError: tuples nest deeper than `MOST`, or the instructions end or refer to nothing.
    """
    try:
        deep = _is_deep(content)
    except (LookupError, ValueError) as error:
        raise pickle.UnpicklingError("its instructions end too early or refer to nothing") from error
    if deep:
        raise pickle.UnpicklingError(f"it has more than {MOST} tuples within one another")


def _is_deep(content: bytes) -> bool:
    """Follow the instructions with each value's depth in its place, up to the first above `MOST`.

    What is no tuple has the depth of what it holds. An object may be named again before it is filled and counts for
    less there; but Python's own code hashes it, and counts.
    """
    stack, marks, memo = list[int](), list[int](), dict[object, int]()
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        takes, to_mark, leaves, deeper = EFFECTS[name]
        if name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in GETS:
            stack.append(memo[argument])
        elif name in PUTS:
            memo[argument] = stack[-1]
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "POP" and marks and marks[-1] == len(stack):
            marks.pop()
        elif takes or to_mark:
            first = (marks.pop() if to_mark else len(stack)) - takes
            held = stack[first:]
            depth = max(held) + deeper if any(held) else deeper  # most are 0, and `any` is the faster of the two
            stack[first:] = [depth] * leaves
            if depth > MOST:
                return True
        elif leaves:
            stack.append(0)
    return False
