"""Numbers in JSON, read and written by compiled code: no Python object for any of them, and no interpreter's lock.

Numba compiles what is here when it is first imported, which takes some seconds, and keeps the result beside this file.
All of it is in one file because Numba looks at that file alone to tell whether what it kept is still true.

`cut` takes a JSON text apart into its arrays of numbers and a short rest; `write` makes text of numbers. Both trust
their caller with memory: read what they ask for.

Sources: Daniel Lemire, "Number parsing at a gigabyte per second" (2021), for eight digits at a time and for numbers
that are exact in float64; Raffaello Giulietti, "The Schubfach way to render doubles" (2020), for the shortest digits.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.types import Array as ArrayType
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from models.types import F32

Function = TypeVar("Function", bound=Callable[..., Any])

ROWS, FLAGS, LONG_ROW, LONG_FLAGS, STRING = range(5)
"""What a mark stands for: rows of numbers, rows of booleans, one array of either that is no row, a string."""

WIDEST = 17
"""Characters that a float32 takes at most with the comma behind it: -0.0000043347263."""

TEXT = ArrayType(types.uint8, 1, "C", readonly=True)
BYTES = ArrayType(types.uint8, 1, "C")
NUMBERS = ArrayType(types.float32, 1, "C")
MATRIX = ArrayType(types.float32, 2, "C", readonly=True)
TABLE = ArrayType(types.int64, 2, "C")
U, N = types.uint64, types.int64


def compiled(signature: Any, *, inline: bool = False) -> Callable[[Function], Function]:
    """Compile a function for one signature, and keep what that gives where there is a place for it."""

    def decorate(function: Function) -> Function:
        how: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        if inline:
            how["inline"] = "always"
        try:
            return cast(Function, njit(signature, cache=True, **how)(function))
        except RuntimeError:  # no folder can be written: it is compiled at every start
            return cast(Function, njit(signature, **how)(function))

    return decorate


# ---- what NumPy's arrays do not offer: their bytes, seen without a look at their bounds


def _pointer(context: Any, builder: Any, kind: Any, arguments: Any, of: Any) -> Any:
    data = make_array(kind)(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), of.as_pointer())


@intrinsic
def _byte(typing: Any, text: Any, at: Any) -> Any:
    """The byte at a place, as a signed integer."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(context, builder, signature.args[0], arguments, ir.IntType(8))
        return builder.zext(builder.load(place), ir.IntType(64))

    return types.int64(text, at), code


@intrinsic
def _word(typing: Any, text: Any, at: Any) -> Any:
    """Eight bytes from a place on; the first is the least significant, as on every machine that this runs on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.load(_pointer(context, builder, signature.args[0], arguments, ir.IntType(64)))
        found.align = 1
        return found

    return types.uint64(text, at), code


@intrinsic
def _put(typing: Any, out: Any, at: Any, word: Any) -> Any:
    """Write eight bytes to a place."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(context, builder, signature.args[0], arguments, ir.IntType(64))
        builder.store(arguments[2], place).align = 1
        return context.get_dummy_value()

    return types.void(out, at, types.uint64), code


@intrinsic
def _trailing(typing: Any, word: Any) -> Any:
    """Zero bits below the lowest one; the word is not 0."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@intrinsic
def _leading(typing: Any, word: Any) -> Any:
    """Zero bits above the highest one; the word is not 0."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@intrinsic
def _bits(typing: Any, number: Any) -> Any:
    """A float's bits."""
    width = number.bitwidth

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.bitcast(arguments[0], ir.IntType(width))
        return found if width == 64 else builder.zext(found, ir.IntType(64))

    return types.uint64(number), code


@intrinsic
def _signed(typing: Any, number: Any, negative: Any) -> Any:
    """A positive number with the sign that the lowest bit of `negative` says."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sign = builder.shl(arguments[1], ir.Constant(ir.IntType(64), 63))
        return builder.bitcast(builder.or_(builder.bitcast(arguments[0], ir.IntType(64)), sign), ir.DoubleType())

    return types.float64(types.float64, types.int64), code


# ---- from text to numbers

ODD = -1
"""In place of where something ends: it is not plain."""

TENS = np.array([10**i for i in range(20)], np.uint64)
POWERS = np.array([float(f"1e{i}") for i in range(61)])
MOST_EXACT_DIGITS, EXACT_POWER = 15, 22
"""So many digits float64 holds, and so large a power of ten: then one operation on both is rounded right."""

ONES = 0x0101010101010101
HIGHS = 0x8080808080808080
LARGEST = float(np.finfo(np.float32).max) + 2.0**102
"""From here on a number is infinite in float32: halfway to what would come next."""
SMALLEST = 2.0**-126
"""Below, float32 has fewer digits."""


@compiled(N(TEXT, N), inline=True)
def _skipped(text: Any, at: int) -> int:
    """Where white space ends."""
    while True:
        c = _byte(text, at)
        if c > 32 or not (c == 32 or c == 10 or c == 13 or c == 9):
            return at
        at += 1


@compiled(types.boolean(TEXT, N), inline=True)
def _begins_row(text: Any, at: int) -> bool:
    """Whether behind the bracket at a place there is a number or a boolean."""
    c = _byte(text, _skipped(text, at + 1))
    return 48 <= c <= 57 or c == 45 or c == 116 or c == 102


@compiled(types.UniTuple(N, 2)(TEXT, N, NUMBERS, N), inline=True)
def _flags(text: Any, at: int, numbers: Any, n: int) -> tuple[int, int]:
    """Read booleans up to the bracket that ends them: where they end, and how many numbers there are now."""
    while True:
        if _byte(text, at) == 116 and _byte(text, at + 1) == 114 and _byte(text, at + 2) == 117:
            value, at = 1, at + 3
        elif (
            _byte(text, at) == 102 and _byte(text, at + 1) == 97
            and _byte(text, at + 2) == 108 and _byte(text, at + 3) == 115
        ):  # fmt: skip
            value, at = 0, at + 4
        else:
            return ODD, n
        if _byte(text, at) != 101:
            return ODD, n
        numbers[n] = value
        n += 1
        at = _skipped(text, at + 1)
        c = _byte(text, at)
        if c == 93:
            return at + 1, n
        if c != 44:
            return ODD, n
        at = _skipped(text, at + 1)


@compiled(types.UniTuple(N, 3)(TEXT, N, N, NUMBERS, N, TABLE, N))
def _numbers(text: Any, size: int, at: int, numbers: Any, n: int, hard: Any, h: int) -> tuple[int, int, int]:
    """Read numbers up to the bracket that ends them: where they end, and how many numbers and hard ones there are."""
    while True:
        begin = at
        negative = N(_byte(text, at) == 45)
        at += negative
        first = at
        d = _byte(text, at) - 48
        if d < 0 or d > 9:
            return ODD, n, h
        m = U(d)
        at += 1
        d = _byte(text, at) - 48
        while 0 <= d <= 9:
            m = m * U(10) + U(d)
            at += 1
            d = _byte(text, at) - 48
        digits = at - first
        if digits > 1 and _byte(text, first) == 48:
            return ODD, n, h
        power = N(0)
        if d == -2:  # a point
            at += 1
            point = at
            count = 8
            if at + 8 <= size:
                # Eight characters at once, as many of them as are digits: pairs, fours and eights are added up.
                w = _word(text, at) - U(48 * ONES)
                other = ((w + U(0x76 * ONES)) | w) & U(HIGHS)
                if other != U(0):
                    count = _trailing(other) >> 3
                    if count == 0:
                        return ODD, n, h
                    w <<= U(64 - 8 * count)
                w = w * U(10) + (w >> U(8))
                low, high = w & U(0x000000FF000000FF), (w >> U(16)) & U(0x000000FF000000FF)
                w = (low * U(0x000F424000000064) + high * U(0x0000271000000001)) >> U(32)
                m = m * TENS[count] + w
                at += count
            if count == 8:
                d = _byte(text, at) - 48
                while 0 <= d <= 9:
                    m = m * U(10) + U(d)
                    at += 1
                    d = _byte(text, at) - 48
                if at == point:
                    return ODD, n, h
            power = point - at
            digits -= power
        c = _byte(text, at)
        if c == 101 or c == 69:
            at += 1
            c = _byte(text, at)
            at += N(c == 43 or c == 45)
            exponent, point = N(0), at
            d = _byte(text, at) - 48
            while 0 <= d <= 9:
                exponent = min(exponent * 10 + d, N(100_000))
                at += 1
                d = _byte(text, at) - 48
            if at == point:
                return ODD, n, h
            power += -exponent if c == 45 else exponent
        if digits > MOST_EXACT_DIGITS:  # those in front that are 0 do not count
            while _byte(text, first) == 48 or _byte(text, first) == 46:
                digits -= N(_byte(text, first) == 48)
                first += 1
        if digits > 19 or power < -60 or power > 60:
            is_hard = m != U(0) or digits > 19
            y = 0.0
        else:
            y = np.float64(m)
            y = y / POWERS[-power] if power < 0 else y * POWERS[power]
            is_hard = False
            if digits > MOST_EXACT_DIGITS or power < -EXACT_POWER or power > EXACT_POWER:
                # Three roundings, each by half of the last bit at most. float32 has 29 bits fewer: to which of its
                # numbers the exact one is rounded is in doubt only beside the middle between two of them.
                beside = N(_bits(y) & U(0x1FFFFFFF)) - 0x10000000
                is_hard = -8 <= beside <= 8 or (y < SMALLEST and y != 0.0)
        if y >= LARGEST:
            return ODD, n, h
        if is_hard:
            if h >= len(hard):
                return ODD, n, h
            hard[h, 0], hard[h, 1], hard[h, 2] = n, begin, at
            h += 1
        numbers[n] = _signed(y, negative)
        n += 1
        at = _skipped(text, at)
        c = _byte(text, at)
        if c == 93:
            return at + 1, n, h
        if c != 44:
            return ODD, n, h
        at = _skipped(text, at + 1)


@compiled(N(TEXT, N, N), inline=True)
def _quoted(text: Any, size: int, at: int) -> int:
    """Where the quotation mark is that ends a string without escapes."""
    while at + 8 <= size:
        w = _word(text, at)
        quote, escape = w ^ U(34 * ONES), w ^ U(92 * ONES)
        found = (((quote - U(ONES)) & ~quote) | ((escape - U(ONES)) & ~escape)) & U(HIGHS)
        if found != U(0):
            at += _trailing(found) >> 3
            return at if _byte(text, at) == 34 else ODD
        at += 8
    while at < size:
        c = _byte(text, at)
        if c == 34:
            return at
        if c == 92:
            return ODD
        at += 1
    return ODD


@compiled(N(TEXT, N, N, BYTES, N), inline=True)
def _copied(text: Any, at: int, end: int, rest: Any, k: int) -> int:
    """Copy a part of the text to the rest, and say where that ends."""
    if k + end - at > len(rest):
        return ODD
    for i in range(at, end):
        rest[k] = text[i]
        k += 1
    return k


@compiled(N(BYTES, N, N), inline=True)
def _marked(rest: Any, k: int, number: int) -> int:
    """Write a mark to the rest, and say where that ends."""
    if k + 20 > len(rest):
        return ODD
    rest[k], rest[k + 1], rest[k + 2], rest[k + 3], rest[k + 4] = 34, 99, 117, 116, 58
    k += 5
    width, least = 1, N(10)
    while number >= least:
        width, least = width + 1, least * 10
    for i in range(width):
        rest[k + width - 1 - i] = 48 + number % 10
        number //= 10
    rest[k + width] = 34
    return k + width + 1


@compiled(types.UniTuple(N, 5)(TEXT, N, N, N, N, N, BYTES, NUMBERS, TABLE, TABLE))
def cut(
    text: Any,
    start: int,
    stop: int,
    base: int,
    short_string: int,
    short_row: int,
    rest: Any,
    numbers: Any,
    marks: Any,
    hard: Any,
) -> tuple[int, int, int, int, int]:
    """Take a JSON text apart: arrays of numbers and booleans, and long strings, are cut out, and marks left.

    Consecutive rows of one length and kind have one mark, `"cut:7"`, in their place; so have an array that is
    the value of a field, and a string, unless they are short. Whether what is left is JSON is for others to find out;
    what has been cut out is.

    Args:
        text: all of it, uint8, with a 0 behind its end, as `bytes` have.
        start: where to begin: outside of strings, and not at the value of a field unless it is 0.
        stop: the first row of numbers that begins here or later is left to others, with what follows.
        base: number of the first mark.
        short_string: bytes of a string up to which it stays in the rest.
        short_row: elements up to which an array does that is the value of a field.
        rest: takes the text with marks.
        numbers: takes what was cut out, one after the other; half as many as there are bytes from `start`, and one.
            Booleans are 1 and 0.
        marks: takes a row for each mark: what it stands for; its first number, how many rows, how many columns; of a
            string where it begins and where it ends.
        hard: takes a row for each number that has to be read with more care: which one, where its text begins and ends.

    Returns:
        Where it stopped, or `ODD` if something is not plain or too much for `rest`, `marks` or `hard`; and how much has
        been written to `rest`, `numbers`, `marks` and `hard`.
    """
    size = len(text)
    at, k, n, m, h = start, N(0), N(0), N(0), N(0)
    before = N(0)
    odd = (N(ODD), k, n, m, h)
    while at < size:
        c = _byte(text, at)
        if c == 34:
            end = _quoted(text, size, at + 1)
            if end < 0 or m >= len(marks):
                return odd
            if end - at > short_string + 1:
                marks[m, 0], marks[m, 1], marks[m, 2] = STRING, at + 1, end
                k = _marked(rest, k, base + m)
                m += 1
            else:
                k = _copied(text, at, end + 1, rest, k)
            at = end + 1
        elif c == 91 and _begins_row(text, at):
            is_value, goes_on, comma = before == 58, False, at
            while True:
                if at >= stop:
                    return at, k, n, m, h
                first, hard_before = n, h
                inner = _skipped(text, at + 1)
                is_flags = N(_byte(text, inner) >= 102)
                if is_flags:
                    end, n = _flags(text, inner, numbers, n)
                else:
                    end, n, h = _numbers(text, size, inner, numbers, n, hard, h)
                if end < 0 or m >= len(marks):
                    return odd
                columns = n - first
                if is_value and columns <= short_row:
                    k = _copied(text, at, end, rest, k)
                    n, h = first, hard_before
                elif goes_on and marks[m - 1, 3] == columns and marks[m - 1, 0] == is_flags:
                    marks[m - 1, 2] += 1
                else:
                    if goes_on:
                        k = _copied(text, comma, comma + 1, rest, k)
                    marks[m, 0] = is_flags + (LONG_ROW if is_value else ROWS)
                    marks[m, 1], marks[m, 2], marks[m, 3] = first, 1, columns
                    if k >= 0:
                        k = _marked(rest, k, base + m)
                    m += 1
                at = end
                comma = _skipped(text, at)
                if is_value or k < 0 or _byte(text, comma) != 44:
                    break
                following = _skipped(text, comma + 1)
                if _byte(text, following) != 91 or not _begins_row(text, following):
                    break
                at, goes_on = following, True
                if at >= stop:
                    k = _copied(text, comma, comma + 1, rest, k)
            c = 93
        elif k < len(rest):
            rest[k] = c
            k += 1
            at += 1
        else:
            return odd
        if k < 0:
            return odd
        if c > 32:
            before = c
    return at, k, n, m, h


# ---- from numbers to text

LOWEST_POWER = -31


def _power_of_ten(k: int) -> int:
    """10ᵏ times a power of two, rounded up to 64 bits of which the highest is set."""
    if k >= 0:
        shift = (10**k).bit_length() - 64
        return -(-(10**k) >> shift) if shift > 0 else 10**k << -shift
    shift = (10**-k).bit_length() + 63
    shift -= (1 << shift) // 10**-k >> 64
    return -(-(1 << shift) // 10**-k)


SCALES = np.array([_power_of_ten(k) for k in range(LOWEST_POWER, 46)], np.uint64)


@compiled(U(U, U, U), inline=True)
def _scaled(high: int, low: int, quarters: int) -> int:
    """The product with a power of ten, cut off; its lowest bit says whether anything was."""
    middle = quarters * high + ((quarters * low) >> U(32))
    return (middle >> U(32)) | U((middle & U(0xFFFFFFFF)) > U(1))


@compiled(types.Tuple((U, N))(U), inline=True)
def _shortest(bits: int) -> tuple[int, int]:
    """The fewest digits that give a positive float32 back, and of those the nearest: digits and power of ten."""
    fraction, exponent = bits & U(0x7FFFFF), N(bits >> U(23))
    # At a power of two, the number below is half as far away as that above.
    is_uneven = fraction == U(0) and exponent > 1
    c = fraction if exponent == 0 else fraction | U(0x800000)
    q = max(exponent, N(1)) - 150
    k = (q * 1_262_611 - (524_031 if is_uneven else 0)) >> 22  # floor(log10(2^q)), or of 3/4 of that
    scale = SCALES[-k - LOWEST_POWER]
    high, low = scale >> U(32), scale & U(0xFFFFFFFF)
    shift = U(q + ((-k * 1_741_647) >> 19) + 1)  # floor(log2(10^-k))
    is_odd = c & U(1)  # of two numbers as near to a decimal, the even one is meant
    value = _scaled(high, low, (c << U(2)) << shift)
    lowest = _scaled(high, low, ((c << U(2)) - U(2) + U(is_uneven)) << shift) + is_odd
    highest = _scaled(high, low, ((c << U(2)) + U(2)) << shift) - is_odd
    digits = value >> U(2)
    # Which of the candidates it is changes from number to number: to choose without a jump is faster.
    fewer = digits // U(10)
    below, above = lowest <= U(40) * fewer, U(40) * fewer + U(40) <= highest
    has_fewer = U(below != above) & U(digits >= U(10))
    fewer = (fewer + U(above)) * U(10)
    below, above = lowest <= U(4) * digits, U(4) * digits + U(4) <= highest
    middle = U(4) * digits + U(2)
    nearer = U(value > middle) | (U(value == middle) & digits & U(1))
    is_one = U(below != above)
    digits += (is_one & U(above)) | ((is_one ^ U(1)) & nearer)
    return digits ^ ((digits ^ fewer) & (U(0) - has_fewer)), k


@compiled(N(U, BYTES, N), inline=True)
def _written(bits: int, out: Any, at: int) -> int:
    """Write a positive float32, and say where it ends: as orjson does, so that both write the same answers."""
    digits, power = _shortest(bits)
    width = 7 + N(digits >= U(10_000_000)) + N(digits >= U(100_000_000))
    if digits < U(1_000_000):  # of the smallest numbers only
        width = ((64 - _leading(digits)) * 1_233) >> 12
        width += N(digits >= TENS[width])
    power += width  # where the point is, from the first digit on
    digits *= TENS[9 - width]
    first = digits // U(100_000_000)
    # The other eight as characters, the first of them lowest: in two fours, four pairs, eight.
    w = digits - first * U(100_000_000)
    half = w // U(10_000)
    w = half | ((w - half * U(10_000)) << U(32))
    half = ((w * U(5_243)) >> U(19)) & U(0x0000007F0000007F)
    w = half | ((w - half * U(100)) << U(16))
    half = ((w * U(103)) >> U(10)) & U(0x000F000F000F000F)
    w = half | ((w - half * U(10)) << U(8))
    count = 1 if w == U(0) else 9 - (_leading(w) >> 3)  # of digits, without zeros at the end
    w |= U(48 * ONES)
    if -6 < power <= 8:
        zeros = max(N(1) - power, N(0))  # in front of the first digit
        whole = max(power, N(1))  # digits in front of the point
        small = N(zeros > 0)
        _put(out, at, U(48 * ONES))
        begin = at + zeros + small
        out[begin] = U(48) + first
        _put(out, begin + 1, w)
        _put(out, (begin if small else at + whole) + 1, w >> U(8 * (whole - 1)))
        out[at + whole] = 46
        return begin + count if small else at + whole + 1 + max(count - whole, N(1))
    out[at] = U(48) + first
    if 8 < power <= 13:
        _put(out, at + 1, w)
        _put(out, at + 9, U(48 * ONES))
        out[at + power], out[at + power + 1] = 46, 48
        return at + power + 2
    at += 1
    if count > 1:
        out[at] = 46
        _put(out, at + 1, w)
        at += count
    out[at] = 101
    at += 1
    power -= 1
    out[at] = 45 if power < 0 else 43
    at, power = at + 1, abs(power)
    if power >= 10:
        out[at] = 48 + power // 10
        at += 1
    out[at] = 48 + power % 10
    return at + 1


def room(rows: F32) -> int:
    """Bytes that `write` may need for rows of numbers, (rows, columns)."""
    return rows.size * WIDEST + len(rows) * 5 + 16


@compiled(N(MATRIX, N, N, N, N, BYTES))
def write(rows: Any, depth: int, first: int, total: int, group: int, out: Any) -> int:
    """Write some rows of an array in JSON, each number with its shortest digits; what is not finite is `null`.

    Args:
        rows: (rows, columns), float32.
        depth: axes of the array, 1 to 3; of one with one axis, rows are what it was cut into.
        first: number of the first of these rows in the array, whose brackets come with its first and last row.
        total: rows of the array.
        group: rows of each of its matrices, where it has three axes.
        out: takes the text; see `room`.

    Returns:
        How many bytes have been written.
    """
    at = N(0)
    for i in range(rows.shape[0]):
        out[at] = 44 if first + i else 91
        at += 1
        if depth == 3 and (first + i) % group == 0:
            out[at] = 91
            at += 1
        if depth > 1:
            out[at] = 91
            at += 1
        for j in range(rows.shape[1]):
            bits = _bits(rows[i, j])
            magnitude = bits & U(0x7FFFFFFF)
            if magnitude >= U(0x7F800000):
                _put(out, at, U(0x6C6C756E))  # null
                at += 4
            else:
                out[at] = 45
                at += N(bits >> U(31))
                if magnitude == U(0):
                    _put(out, at, U(0x302E30))  # 0.0
                    at += 3
                else:
                    at = _written(magnitude, out, at)
            out[at] = 44
            at += 1
        at -= 1
        if depth > 1:
            out[at] = 93
            at += 1
        if depth == 3 and (first + i + 1) % group == 0:
            out[at] = 93
            at += 1
    if first + rows.shape[0] == total:
        out[at] = 93
        at += 1
    return at
