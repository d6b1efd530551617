# SPDX-License-Identifier: BSD-3-Clause
"""Count meson's testlog.json: failures with their output, skips with their reason, a line "failed:
TEST: CASE" for each failed case, and a last line "N passed, N failed". Exit 0 if at least one test passed
and none failed.
    count.py TESTLOG.JSON SUITES"""
import json
import re
import sys

LINES = 80  # of a failing test's output; all of it is in testlog.txt

# What a test prints for one case that it left out: bats (TAP) and cmocka.
PARTLY = re.compile(r'^ok \d+ (?P<case>.*?) # skip *(?P<why>.*)$|^\[  SKIPPED \] (?P<cmocka>test\w*)',
                    re.MULTILINE)

# One case that failed: bats (TAP), cmocka, and the checks of tests/train/parity/lib.py.
FAILED = re.compile(r'^not ok \d+ (?P<bats>.*?)(?: in \d+ms)?$|^\[  FAILED  \] (?P<cmocka>\w+)$'
                    r'|^(?:FAILED|TOO FAR): (?P<check>.*)$', re.MULTILINE)
STARTED = re.compile(r'^\[ RUN      \] (\w+)\n(?!\[)', re.MULTILINE)
PLANNED = re.compile(r'^1\.\.(\d+)$', re.MULTILINE)


def output(test):
    return '\n'.join(test[part].rstrip('\n') for part in ('stdout', 'stderr') if test.get(part))


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip().removeprefix('skipped: ') if lines else 'no reason given'


def failed_cases(test):
    """The names of the cases that failed. If the test gives none: the case that never ended, or the
    last line of its output."""
    text = output(test)
    cases = [found[found.lastgroup] for found in FAILED.finditer(text)]
    if cases:
        return list(dict.fromkeys(cases))
    started = STARTED.findall(test.get('stdout', '').rstrip('\n') + '\n\n')
    if started:
        return [started[-1] + ' did not end']
    planned, done = PLANNED.search(text), len(re.findall(r'^ok \d+ ', text, re.MULTILINE))
    if planned and done < int(planned[1]):
        return [f'case {done + 1} of {planned[1]} did not end']
    line = last_line(text)
    # A sanitizer's report comes after the cases, possibly in a file.
    return [f"exit code {test.get('returncode')} after all cases passed" if 'PASSED' in line else line]


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
        for case in failed_cases(test):
            print(f"failed: {test['name']}: {case}")
    print(f"suites: {suites.replace(' ', ', ')}"
          + ('' if 'full' in suites else ' (tests/run.sh --full runs the long ones too)'))
    print(f'{len(passed)} passed, {len(failed)} failed'
          + (f', {len(skipped)} skipped' if skipped else ''))
    return 0 if passed and not failed else 1


if __name__ == '__main__':
    sys.exit(main())
