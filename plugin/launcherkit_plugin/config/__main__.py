"""The process that reads a configuration: a question on standard input, the answer on standard output."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # a tenth of its short life otherwise, most of which is imports
    from launcherkit_plugin.config.answer import answer_of

    sys.stdout.buffer.write(answer_of(sys.stdin.buffer.read()))
