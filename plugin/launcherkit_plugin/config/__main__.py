"""The process that reads a configuration: a question on standard input, the answer on standard output.

Its argument is the process ID of who asks.
"""

import gc
import sys

if __name__ == "__main__":
    from launcherkit_plugin.config.parent import end_with

    end_with(int(sys.argv[1]))
    gc.disable()  # a tenth of its short life otherwise, most of which is imports
    from launcherkit_plugin.config.answer import answer_of

    sys.stdout.buffer.write(answer_of(sys.stdin.buffer.read()))
