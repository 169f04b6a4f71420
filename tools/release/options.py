"""The arguments of ``./dev release``, apart from what it needs, so that its pages can be checked without."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ABOUT = """\
Build all that a release is, and publish it: wheels and sdists, an image for each purpose and architecture, the chart,
the documentation, bills of materials, provenance, checksums and signatures. What is published is what the last commit
has. Images are built as root.
"""
EXAMPLES = """\
examples:
  ./dev release --dry-run --registry registry.example/gpu --index https://pypi.example/legacy/
        say what would be published where, and whether everything needed is here
  ./dev release --to-folder /srv/release --arch amd64
        build without publishing or signing
  ./dev release --registry registry.example/gpu --index https://pypi.example/legacy/ --key key.pem
        build, sign and publish; with --to-folder as well, what the folder has is not built again

exit codes: 0 done, 1 something can't be built, 2 wrong arguments, 69 something is missing, or a registry or an index
refuses or has something else under the same name
"""
BUILDER = "urn:launcherkit:dev-release"


def parser_of_arguments() -> argparse.ArgumentParser:
    """The arguments of ./dev release."""
    parser = argparse.ArgumentParser(
        prog="./dev release", description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--registry", metavar="NAME", help="push there: a host, perhaps with a port and a path")
    parser.add_argument("--index", metavar="URL", help="upload wheels and sdists there, as twine does")
    parser.add_argument(
        "--index-pages",
        metavar="URL",
        help="where pip finds the index's files (default: URL/simple; beside it if it ends in /legacy)",
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="sign with this key: ECDSA, P-256, PEM, mode 0600")
    parser.add_argument("--passphrase-file", type=Path, metavar="FILE", help="of the key, if it is encrypted")
    parser.add_argument("--unsigned", action="store_true", help="publish without signatures")
    parser.add_argument("--to-folder", type=Path, metavar="DIR", help="keep the release there, for another try as well")
    parser.add_argument(
        "--arch",
        action="append",
        choices=("amd64", "arm64"),
        help="the images' architectures; may be given twice (default: both); QEMU runs what this machine doesn't",
    )
    parser.add_argument("--base", default="", metavar="IMAGE", help="the images' base (default: this distribution)")
    parser.add_argument("--builder", default=BUILDER, metavar="URI", help="for provenance")
    parser.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
    parser.add_argument("--dry-run", action="store_true", help="build and publish nothing; say what would be")
    return parser


def misuse(arguments: argparse.Namespace) -> str:
    """What is wrong with the arguments; empty: nothing."""
    publishes = arguments.registry or arguments.index
    if not publishes and not arguments.to_folder:
        return "nowhere to publish: give --registry, --index or --to-folder"
    if publishes and not (arguments.key or arguments.unsigned or arguments.dry_run):
        return "a release is signed: give --key, or --unsigned"
    if arguments.key and arguments.unsigned:
        return "--key and --unsigned contradict each other"
    if arguments.registry and not re.fullmatch(r"[\w.-]+(:\d+)?(/[a-z0-9._/-]*[a-z0-9])?", arguments.registry):
        return f"--registry {arguments.registry}: a host, perhaps with a port and a path, and no https://"
    if arguments.index and not re.match("https?://", arguments.index):
        return f"--index {arguments.index}: an address that begins with https://"
    return ""
