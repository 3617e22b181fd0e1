"""A program: SVG on its standard input, PNG on its standard output. Its arguments are a font's file, its name, a zoom.

A process of its own, as the library holds the interpreter's lock for as long as it draws, which is up to half a second
in which a server could do nothing else. It imports nothing but that library, so it starts in some 30 ms.
"""

import sys

import resvg_py


def main() -> None:
    """Draw one picture. No font of the machine takes part."""
    file, family, zoom = sys.argv[1:]
    drawn = resvg_py.svg_to_bytes(
        svg_string=sys.stdin.buffer.read().decode(),
        skip_system_fonts=True,
        font_files=[file],
        font_family=family,
        sans_serif_family=family,
        zoom=float(zoom),
    )
    sys.stdout.buffer.write(bytes(drawn))


if __name__ == "__main__":
    main()
