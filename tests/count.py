# SPDX-License-Identifier: BSD-3-Clause
"""Count meson's testlog.json: failures with their output, skips with their reason, a line "failed:
TEST: CASE" for each failed case, and a last line "N passed, N failed". Exit 0 if at least one test passed
and none failed.
    count.py LOG SUITES REPORTS [RERUN]   RERUN: log of the second run of the tests that failed in LOG. One
                                          that passed there counts as passed; its cases get "flaky: TEST: CASE".
                                      results.tsv beside LOG then has each test with passed, failed, flaky or skipped,
                                      and its seconds.
    count.py --rerun LOG REPORTS          print the tests that may run again: all that failed, or none
REPORTS is the directory of the sanitizers' reports (log_path). Each file there counts as a failed test,
also an empty one: its process could not write. See isolate.py for those of processes that were killed."""
import json
import os
import re
import sys

FIRST, LAST = 30, 60  # lines of a failed case's output; all of it is in testlog.txt
FLAKY_LINES = 2000
SLOWEST = 10  # tests whose seconds are printed
RERUNS = 3  # more failures than this have a common reason

# What a test prints for one case that it left out: bats (TAP) and cmocka.
PARTLY = re.compile(r'^ok \d+ (?P<case>.*?) # skip *(?P<why>.*)$|^\[  SKIPPED \] (?P<cmocka>test\w*)',
                    re.MULTILINE)

# One case that failed: bats (TAP), cmocka, and the checks of tests/train/parity/lib.py.
FAILED = re.compile(r'^not ok \d+ (?P<bats>.*?)(?: in \d+ms)?$|^\[  FAILED  \] (?P<cmocka>\w+)$'
                    r'|^(?:FAILED|TOO FAR): (?P<check>.*)$', re.MULTILINE)
STARTED = re.compile(r'^\[ RUN      \] (\w+)\n(?!\[)', re.MULTILINE)
PLANNED = re.compile(r'^1\.\.(\d+)$', re.MULTILINE)
FAILED_BLOCK = re.compile(r'^not ok \d+ .*\n(?:#.*\n)*', re.MULTILINE)
CMOCKA_FAILED = re.compile(r'(?<=^\[  FAILED  \] )(test_?\w+)\n', re.MULTILINE)  # ends what the case wrote to stderr
DULL = re.compile(r'^(?:1\.\.\d+|\[ RUN      \] .*|\[       OK \] .*)\n', re.MULTILINE)
OK_BLOCK = re.compile(r'^ok \d+ .*\n(?:#.*\n)*', re.MULTILINE)  # a passed case of bats with its output

# What a crash or a sanitizer leaves in a failed case's output. 132 to 139: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
CRASH = re.compile(r'\b(?:code|status|got|signal)\W{1,3}(?:132|134|135|136|139)\b'
                   r'|Segmentation fault|core dumped|\d Aborted\b|\bSIG(?:ILL|ABRT|BUS|FPE|SEGV)\b'
                   r'|==\d+==\s*ERROR: |WARNING: ThreadSanitizer|: runtime error: ')


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


def crashed(test):
    """Why this failure says more than "too slow"; '' if nothing does."""
    if test['result'] != 'FAIL':  # a time-out of the whole test, an error
        return test['result']
    code = test.get('returncode', 0)
    if code < 0 or code in (132, 134, 135, 136, 139):
        return f'exit code {code}'
    found = CRASH.search(OK_BLOCK.sub('', output(test) + '\n'))
    return found[0].strip() if found else ''


def read_log(path):
    with open(path, encoding='utf-8', errors='replace') as log:
        tests = [json.loads(line) for line in log if line.strip()]
    for test in tests:
        # "PROJECT:SUITES / NAME", in newer meson (1.12) "SUITES - PROJECT:NAME"
        test['name'] = re.sub(r'^.* / |^.* - [^ :]*:', '', test['name'])
    return tests


def read_reports(directory):
    """The sanitizers' reports by file name."""
    reports = {}
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), encoding='utf-8', errors='replace') as file:
            reports[name] = file.read()
    return reports


def has_failed(test):
    return test['result'] not in ('OK', 'EXPECTEDFAIL', 'SKIP')


def print_rerun(path, directory):
    """Print the tests that may run again. A report, a crash or many failures are not chance."""
    failed = [test for test in read_log(path) if has_failed(test)]
    why = 'a sanitizer has reported' if os.listdir(directory) else ''
    if len(failed) > RERUNS:
        why = f'{len(failed)} tests failed'
    for test in failed:
        if crashed(test):
            why = f"{test['name']}: {crashed(test)}"
    if failed and why:
        print(f'berth: note: no test runs again: {why}', file=sys.stderr)
    else:
        print('\n'.join(test['name'] for test in failed))


def blocks(test):
    """What each failed case wrote, then what belongs to no case."""
    stdout, stderr = (test.get(part, '').rstrip('\n') + '\n' for part in ('stdout', 'stderr'))
    found, seen, start = FAILED_BLOCK.findall(stdout), set(), 0
    for end in CMOCKA_FAILED.finditer(stderr):
        if end[1] not in seen:  # it is there again in the list at the end
            found.append(stderr[start:end.end()])
            start = end.end()
        seen.add(end[1])
    rest = DULL.sub('', OK_BLOCK.sub('', FAILED_BLOCK.sub('', stdout))) + stderr[start:]
    return [block for block in found + [rest] if block.strip()]


def print_output(test, path, whole=False):
    """The output of the failed cases, or the first lines of all of it."""
    print(f"---- {test['name']}: {test['result']} ({test.get('returncode')}), "
          f"{test.get('duration', 0):.1f} s: {' '.join(test.get('command', []))}")
    for block in [output(test)] if whole else blocks(test):
        lines = block.strip('\n').splitlines()
        first, last = (FLAKY_LINES, 0) if whole else (FIRST, LAST)
        if len(lines) > first + last:
            lines[first:len(lines) - last] = [f'... ({len(lines) - first - last} lines are in {path[:-5]}.txt only)']
        print('\n'.join('     ' + line for line in lines))


def too_slow(tests):
    """The tests above BERTH_TEST_LIMIT_S, which is for an idle machine and a build without a sanitizer."""
    limit_s = float(os.environ.get('BERTH_TEST_LIMIT_S') or 'inf')
    slow = float(os.environ.get('BERTH_TEST_SLOW') or 1) * max(1, max(os.getloadavg()) / (os.cpu_count() or 1))
    return [test for test in tests if test.get('duration', 0) > limit_s * slow]


def main():
    if sys.argv[1] == '--rerun':
        print_rerun(*sys.argv[2:])
        return 0
    path, suites, directory = sys.argv[1:4]
    tests, again = [], {}
    try:
        tests = read_log(path)
        if sys.argv[4:]:
            again = {test['name']: test['result'] == 'OK' for test in read_log(sys.argv[4])}
    except OSError as error:
        print(f'berth: no test log ({error})', file=sys.stderr)
    skipped = [test for test in tests if test['result'] == 'SKIP']
    flaky = [test for test in tests if has_failed(test) and again.get(test['name'])]
    failed = [test for test in tests if has_failed(test) and test not in flaky]
    passed = [test for test in tests if test not in skipped + failed]
    reports = read_reports(directory)
    results = [(test['name'], kind, f"{test.get('duration', 0):.1f}")
               for kind, those in (('skipped', skipped), ('flaky', flaky), ('failed', failed),
                                   ('passed', [test for test in passed if test not in flaky])) for test in those]
    results += [('sanitizer report', 'failed', '0.0')] * bool(reports)
    if tests:
        with open(os.path.join(os.path.dirname(path), 'results.tsv'), 'w', encoding='utf-8') as file:
            file.writelines('\t'.join(result) + '\n' for result in sorted(results))

    for test in failed:
        print_output(test, path)
    for test in flaky:
        print_output(test, path, whole=True)
    for name, text in reports.items():
        print(f'---- sanitizer report {name}:')
        print('\n'.join('     ' + line for line in text.splitlines()))
    for test in skipped:
        print(f"skipped: {test['name']}: {last_line(output(test))}")
    for test in passed + failed:
        for found in PARTLY.finditer(output(test)):
            case = found['case'] or found['cmocka']
            print(f"skipped in {test['name']}: {case}" + (f": {found['why']}" if found['why'] else ''))
    for kind, those in (('flaky', flaky), ('failed', failed)):
        for test in those:
            for case in failed_cases(test):
                print(f"{kind}: {test['name']}: {case}")
    for name in reports:
        print(f'failed: sanitizer report {name}')
    print(f"suites: {suites.replace(' ', ', ')}"
          + ('' if 'full' in suites else ' (tests/run.sh --full runs the long ones too)'))
    seconds = sorted(((test.get('duration', 0), test['name']) for test in tests), reverse=True)
    print(f"seconds: {sum(took for took, _ in seconds):.0f} in all; " +
          ', '.join(f'{name} {took:.0f}' for took, name in seconds[:SLOWEST]))
    late = too_slow(passed)
    for test in late:
        print(f"failed: {test['name']}: it took {test['duration']:.0f} s, which is too long: split it, or wait for events")
    failures = len(failed) + len(reports) + len(late)
    print(f'{len(passed) - len(late)} passed, {failures} failed' + (f', {len(skipped)} skipped' if skipped else ''))
    return 0 if passed and not failures else 1


if __name__ == '__main__':
    sys.exit(main())
