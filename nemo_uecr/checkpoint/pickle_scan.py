"""What a pickle would cost and change, read off its instructions while nothing is built.

The list of names that it may use does not stop a pickle that gives one of these classes another method, that ends the
process by tuples in tuples as a key (C code hashes them, calls itself and counts nothing), or that is hashed for ever.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Sequence

__all__ = ["MOST", "check_instructions"]

MOST = 32
"""Tuples within one another; those of a checkpoint hold one another twice."""
MOST_PARTS = 1_000_000
"""Values in a tuple and the tuples in it, one that is named again counted again, as a hash does."""
MODULUS = 2**61 - 1
"""Python's hash of a whole number is the rest by this one: keys that are multiples of it are all compared."""

TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
COPIES = frozenset(["BINGET", "LONG_BINGET", "GET", "DUP"])
PUTS = ("BINPUT", "LONG_BINPUT", "PUT")
NAMES = frozenset(["GLOBAL", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"])
INTEGERS = ("INT", "LONG", "LONG1", "LONG4")
REMEMBERS = frozenset([*PUTS, "MEMOIZE"])
WATCHED = frozenset([*PUTS, *INTEGERS, "BUILD"])

#: A value is 0, unless it is a class or function, or holds tuples: then `parts << SHIFT | depth`.
NAME = -1
SHIFT = 8
DEPTH = (1 << SHIFT) - 1


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


def check_instructions(content: bytes) -> None:
    """Refuse a pickle that may end or stop the process, or change a class of it.

    Raises:
        pickle.UnpicklingError: with the reason; also where the instructions end or refer to nothing.
    """
    try:
        _follow(content)
    except (LookupError, ValueError) as error:
        raise pickle.UnpicklingError("its instructions end too early or refer to nothing") from error


def _follow(content: bytes) -> None:
    """Do the instructions with a number in the place of each value.

    What is no tuple counts as what it holds. An object may be named again before it is filled and counts for less
    there; but Python's own code hashes it, and counts the depth.
    """
    stack, marks, memo = list[int](), list[int](), dict[object, int]()
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        name = opcode.name
        takes, to_mark, leaves, deeper = EFFECTS[name]
        if name in WATCHED:
            _look(name, argument, number, stack)
        if name in REMEMBERS:
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in COPIES:
            stack.append(stack[-1] if name == "DUP" else memo[argument])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "POP" and marks and marks[-1] == len(stack):
            marks.pop()
        elif takes or to_mark:
            first = (marks.pop() if to_mark else len(stack)) - takes
            stack[first:] = [NAME if name in NAMES else _joined(stack[first:], deeper)] * leaves
        elif leaves:
            stack.append(NAME if name in NAMES else 0)


def _look(name: str, argument: object, number: int, stack: Sequence[int]) -> None:
    if name == "BUILD" and stack[-2] == NAME:
        raise pickle.UnpicklingError("it changes a class or a function")
    if name in PUTS and not (isinstance(argument, int) and argument <= number):
        raise pickle.UnpicklingError("it keeps a value under a number beyond its instructions")
    if name in INTEGERS and not (isinstance(argument, int) and abs(argument) < MODULUS):
        raise pickle.UnpicklingError("it has a number that no checkpoint has")


def _joined(held: Sequence[int], deeper: int) -> int:
    """The number of what holds these values, a tuple or not."""
    if not any(held):  # nearly always, and faster
        return (len(held) + 1) << SHIFT | 1 if deeper and held else 0
    values = [max(value, 0) for value in held]
    depth = max(value & DEPTH for value in values) + deeper
    parts = sum(max(value >> SHIFT, 1) for value in values) + 1
    if depth > MOST:
        raise pickle.UnpicklingError(f"it has more than {MOST} tuples within one another")
    if deeper and parts > MOST_PARTS:
        raise pickle.UnpicklingError(f"it has tuples of more than {MOST_PARTS:,} parts")
    return parts << SHIFT | depth
