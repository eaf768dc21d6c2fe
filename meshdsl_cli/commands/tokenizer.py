"""`meshdsl tokenizer train`."""

from pathlib import Path

from meshdsl_cli.declare import Command, Flag
from meshdsl_cli.flags import count

COMMAND = Command(
    "tokenizer",
    help="make a tokenizer from text",
    parts=(
        Command(
            "train",
            help="learn a byte-level BPE",
            function="meshdsl.commands.tokenizer:train_tokenizer",
            flags=(
                Flag(
                    "paths",
                    nargs="+",
                    metavar="PATH",
                    help="files and folders of text, JSONL or parquet",
                ),
                Flag(
                    "--vocab",
                    type=count,
                    required=True,
                    metavar="N",
                    help="tokens, of which 257 are the bytes and the end of a document",
                ),
                Flag(
                    "--out",
                    type=Path,
                    required=True,
                    metavar="FILE",
                    help="the file to write, for data.tokenizer",
                ),
                Flag(
                    "--format",
                    choices=("auto", "text", "jsonl", "parquet"),
                    default="auto",
                    help="of the files; auto goes by their endings",
                ),
                Flag(
                    "--field",
                    default="text",
                    metavar="NAME",
                    help="of a JSONL object, or the column of a parquet file, that holds the text",
                ),
            ),
        ),
    ),
)
