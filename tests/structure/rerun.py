# SPDX-License-Identifier: BSD-3-Clause
"""tests/run.sh on a tiny project: which failed tests run again, and what it then says.
    rerun.py ROOT CC..."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Each test counts its runs; $2 says what to do in the first, $3 in a later one.
ACT = r'''
echo run >>"$RUNS/$1"
what=$2
[ "$(wc -l <"$RUNS/$1")" = 1 ] || what=$3
echo 1..2
echo "ok 1 fine"
case $what in
pass) echo "ok 2 sometimes" ;;
fail) printf 'not ok 2 sometimes\n# too late\n'; exit 1 ;;
alone) mkdir "$RUNS/lock" || exit 1; sleep 0.5; rmdir "$RUNS/lock"; echo "ok 2 sometimes" ;;
crash) printf 'not ok 2 sometimes\n# exit code 139, expected 0\n'; exit 1 ;;
expected-crash) printf 'ok 2 dies\n# exit code 139, as expected\nnot ok 3 sometimes\n'; exit 1 ;;
killed) kill -SEGV $$ ;;
hang) exec sleep 60 ;;
left) sleep 60 >/dev/null 2>&1 & echo "ok 2 sometimes" ;;
fail-left) sleep 60 >/dev/null 2>&1 & printf 'not ok 2 sometimes\n'; exit 1 ;;
memory) echo x >/dev/shm/kept; echo "ok 2 sometimes" ;;
alone-at-home) [ ! -e /tmp/seen ] || exit 1; sleep 0.5; echo x >/tmp/seen; echo "ok 2 sometimes" ;;
long) echo "not ok 2 sometimes"; seq -f '# line %.0f' 200; echo "ok 3 fine"; seq -f '# fine %.0f' 200; exit 1 ;;
absent) echo "skipped: not here"; exit 77 ;;
silent) ulimit -f 0; trap '' XFSZ; report; ulimit -f unlimited; echo "ok 2 sometimes" ;;
cut | leak | whole) # a process with such a report is killed, or ends by itself
	sh -c 'path=${ASAN_OPTIONS##*log_path=} path=${path%%:*}.program.$$
		printf "==%d==Unable to get registers from thread 8.\n" $$ >"$path"
		[ "$0" != leak ] || echo "==7==ERROR: LeakSanitizer: detected memory leaks" >>"$path"
		[ "$0" = whole ] || kill -KILL $$' "$what"
	sh -c 'path=${ASAN_OPTIONS##*log_path=}; : >"${path%%:*}.program.$$"; kill -KILL $$'
	echo "ok 2 sometimes" ;;
*) "$what"; echo "ok 2 sometimes" ;; # a program whose exit code is lost
esac
'''

REPORT = '''
#include <stdlib.h>
int main(void)
{
	char *volatile text = malloc(1);
	free(text);
	return text[0];
}
'''

RACE = '''
#include <pthread.h>
static int count;
static void *add(void *unused)
{
	count++;
	return unused;
}
int main(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, add, NULL);
	count++;
	return pthread_join(thread, NULL);
}
'''

UNDEFINED = '''
int main(int argc, char **argv)
{
	(void)argv;
	return (argc + 0x7ffffffe) + argc > 0;
}
'''

# What only namespaces (tests/isolate.py) show.
ALONE = {
    'left': ([('left', 'left')], 1, 2, ['failed: left-0: left behind: process', '): sleep 60', '0 passed, 1 failed'], []),
    'follows': ([('fail-left', 'pass')], 0, 2, ['flaky: follows-0: sometimes', '1 passed, 0 failed'], ['flaky: follows-0: left']),
    'memory': ([('memory', 'memory')], 1, 2, ['failed: memory-0: left behind: shared memory /dev/shm/kept'], []),
    'unseen': ([('alone-at-home', 'fail')] * 3, 0, 1, ['3 passed, 0 failed'], ['failed:']),
    'named': ([('report', 'pass')], 1, 1, ['failed: sanitizer report asan.sh-act.sh-named-0-report-pass.report.'], []),
    'cut': ([('cut', 'pass')], 0, 1, ['1 passed, 0 failed'], ['failed:']),
    'leak': ([('leak', 'pass')], 1, 1, ['failed: sanitizer report asan.', '1 passed, 1 failed'], []),
    'whole': ([('whole', 'pass')], 1, 1, ['failed: sanitizer report asan.', '1 passed, 1 failed'], []),
    'stuck': ([('hang', 'pass')], 1, 1, ['still running, load average', '): sleep 60', '0 passed, 1 failed'], ['flaky:']),
}

# suite: [tests as (first run, later runs)], exit code, runs of each test, lines expected, lines forbidden
CASES = {
    'flaky': ([('fail', 'pass')], 0, 2, ['flaky: flaky-0: sometimes', '     # too late', '1 passed, 0 failed'], ['failed:']),
    'twice': ([('fail', 'fail')], 1, 2, ['failed: twice-0: sometimes', '0 passed, 1 failed'], ['flaky:']),
    'three': ([('fail', 'alone')] * 3, 0, 2, ['flaky: three-2: sometimes', '3 passed, 0 failed'], ['failed:']),
    'four': ([('fail', 'pass')] * 4, 1, 1, ['failed: four-3: sometimes', '0 passed, 4 failed'], ['flaky:']),
    'skip': ([('fail', 'absent')], 1, 2, ['failed: skip-0: sometimes', '0 passed, 1 failed'], ['flaky:']),
    'crash': ([('crash', 'pass')], 1, 1, ['failed: crash-0: sometimes', '0 passed, 1 failed'], ['flaky:']),
    'meant': ([('expected-crash', 'pass')], 0, 2, ['flaky: meant-0: sometimes', '1 passed, 0 failed'], ['failed:']),
    'killed': ([('killed', 'pass')], 1, 1, ['0 passed, 1 failed'], ['flaky:']),
    'both': ([('fail', 'pass'), ('killed', 'pass')], 1, 1, ['0 passed, 2 failed'], ['flaky:']),
    'hang': ([('hang', 'pass')], 1, 1, ['0 passed, 1 failed'], ['flaky:']),
    # A test that passes, or fails for another reason, does not hide a report of one of its processes.
    'report': ([('report', 'pass')], 1, 1, ['heap-use-after-free', 'failed: sanitizer report asan.', '1 passed, 1 failed'], ['flaky:']),
    'silent': ([('silent', 'pass')], 1, 1, ['failed: sanitizer report asan.', '1 passed, 1 failed'], ['flaky:']),
    'undefined': ([('undefined', 'pass')], 1, 1, ['signed integer overflow', '1 passed, 1 failed'], ['flaky:']),
    'race': ([('fail', 'pass'), ('race', 'pass')], 1, 1, ['data race', 'failed: sanitizer report tsan.', '1 passed, 2 failed'],
             ['flaky:']),
    'long': ([('long', 'long')], 1, 2, ['     # line 29', '     ... (111 lines are in ', '     # line 200', 'failed: long-0: sometimes'],
             ['# line 30\n', '# line 140\n', '# fine']),
    'late': ([('fail', 'report')], 1, 2, ['heap-use-after-free', '1 passed, 1 failed'], []),
}


def compile_program(cc, directory, name, source, sanitizer):
    (directory / (name + '.c')).write_text(source)
    flags = ['-fsanitize=' + sanitizer, '-g', '-pthread']
    subprocess.run([*cc, *flags, '-o', directory / name, directory / (name + '.c')], check=True)


def write_project(root, project):
    for name in ('tests', 'jobscripts/local', 'runs'):
        (project / name).mkdir(parents=True)
    for name in ('tests/run.sh', 'tests/count.py', 'tests/isolate.py'):
        shutil.copy(root / name, project / name)
    (project / 'jobscripts/local/packages.sh').write_text('packages_need() { :; }\npackages_want() { :; }\n')
    (project / 'meson_options.txt').write_text("option('tests', type: 'feature')\n")
    (project / 'act.sh').write_text(ACT)
    rows = ["project('tiny', version: '1')", "sh = find_program('sh')"]
    for suite, (tests, *_) in (CASES | ALONE).items():
        for index, (first, later) in enumerate(tests):
            limit = 5 if ('hang', 'pass') in tests else 60
            rows.append(f"test('{suite}-{index}', sh, suite: '{suite}', timeout: {limit}, "
                        f"args: [files('act.sh'), '{suite}-{index}', '{first}', '{later}'])")
    (project / 'meson.build').write_text('\n'.join(rows) + '\n')


def main():
    root, cc = pathlib.Path(sys.argv[1]), sys.argv[2:]
    isolated = subprocess.run([sys.executable, root / 'tests/isolate.py', '--check'], check=False).returncode == 0
    cases = CASES | (ALONE if isolated else {})
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        project = pathlib.Path(name)
        write_project(root, project)
        compile_program(cc, project, 'report', REPORT, 'address')
        compile_program(cc, project, 'undefined', UNDEFINED, 'undefined')
        compile_program(cc, project, 'race', RACE, 'thread')
        environment = {name: value for name, value in os.environ.items() if not name.startswith('MESON')}
        environment |= {'RUNS': str(project / 'runs'), 'PATH': f"{project}:{os.environ['PATH']}"}
        # TSan aborts if address randomisation maps a library where it keeps its shadow memory.
        fixed = ['setarch', '-R'] if subprocess.run(['setarch', '-R', 'true'], check=False).returncode == 0 else []
        for suite, (tests, code, runs, expected, forbidden) in cases.items():
            done = subprocess.run([*fixed, 'sh', project / 'tests/run.sh', '--suite', suite], env=environment, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
            wrong = [f'no line with "{line}"' for line in expected if line not in done.stdout]
            wrong += [f'a line with "{line}"' for line in forbidden if line in done.stdout]
            if done.returncode != code:
                wrong.append(f'exit code {done.returncode}, expected {code}')
            for index in range(len(tests)):
                count = len((project / f'runs/{suite}-{index}').read_text().splitlines())
                if count != runs:
                    wrong.append(f'{suite}-{index} ran {count} times, expected {runs}')
            for line in wrong:
                print(f'FAILED: {suite}: {line}')
            if wrong:
                print(done.stdout)
            bad += bool(wrong)
    print(f'{len(cases) - bad} of {len(cases)} cases as expected' + ('' if isolated else '; no namespaces here'))
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
