# SPDX-License-Identifier: BSD-3-Clause
"""Count meson's testlog.json: failures with their output, skips with their reason, and a last
line "N passed, N failed". Exit 0 when at least one test passed and none failed.
    count.py TESTLOG.JSON SUITES"""
import json
import re
import sys

LINES = 80  # of a failing test's output; all of it is in testlog.txt

# What a test prints for one case that it left out: bats (TAP) and cmocka.
PARTLY = re.compile(r'^ok \d+ (?P<case>.*?) # skip *(?P<why>.*)$|^\[  SKIPPED \] (?P<cmocka>test\w*)',
                    re.MULTILINE)


def output(test):
    return '\n'.join(test[part].rstrip('\n') for part in ('stdout', 'stderr') if test.get(part))


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip().removeprefix('skipped: ') if lines else 'no reason given'


def main():
    path, suites = sys.argv[1:3]
    tests = []
    try:
        with open(path, encoding='utf-8', errors='replace') as log:
            tests = [json.loads(line) for line in log if line.strip()]
        for test in tests:
            test['name'] = test['name'].rpartition(' / ')[2]
    except OSError as error:
        print(f'berth: no test log ({error})', file=sys.stderr)
    passed, failed, skipped = [], [], []
    for test in tests:
        kind = {'OK': passed, 'EXPECTEDFAIL': passed, 'SKIP': skipped}.get(test['result'], failed)
        kind.append(test)

    for test in failed:
        lines = output(test).splitlines()
        print(f"---- {test['name']}: {test['result']} ({test.get('returncode')}), "
              f"{test.get('duration', 0):.1f} s: {' '.join(test.get('command', []))}")
        if len(lines) > LINES:
            print(f'     ({len(lines) - LINES} lines before these are in {path[:-5]}.txt)')
        print('\n'.join('     ' + line for line in lines[-LINES:]))
    for test in skipped:
        print(f"skipped: {test['name']}: {last_line(output(test))}")
    for test in passed + failed:
        for found in PARTLY.finditer(output(test)):
            case = found['case'] or found['cmocka']
            print(f"skipped in {test['name']}: {case}" + (f": {found['why']}" if found['why'] else ''))
    for test in failed:
        print(f"failed: {test['name']}")
    print(f"suites: {suites.replace(' ', ', ')}"
          + ('' if 'full' in suites else ' (tests/run.sh --full runs the long ones too)'))
    print(f'{len(passed)} passed, {len(failed)} failed'
          + (f', {len(skipped)} skipped' if skipped else ''))
    return 0 if passed and not failed else 1


if __name__ == '__main__':
    sys.exit(main())
