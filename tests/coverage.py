# SPDX-License-Identifier: BSD-3-Clause
"""Line coverage of lib/ and bin/ by the quick suite: build with -Db_coverage=true, run the suite, print a
table of rooms, and name the rooms below 70 %.

    coverage.py BUILD [MESON OPTIONS]

A line counts once, however many objects contain it. It is executable if gcov reports it for any object,
and covered if any object ran it. docs/testing.md says what is not counted."""
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
FLOOR = 70  # percent
# They check what a library exports, and an instrumented one exports gcov's names.
EXPECTED_FAILURES = {'cli-libberth'}
BATCH = 25  # objects per gcov


def run_suite(build, options):
    setup = ['meson', 'setup', *(['--reconfigure'] if (build / 'build.ninja').exists() else []), build,
             '-Dtests=enabled', '-Db_coverage=true', *options]
    for command in setup, ['ninja', '--quiet', '-C', build]:
        done = subprocess.run(command, cwd=SOURCE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit(f'coverage: {command[0]} failed:\n{done.stdout[-3000:]}')
    # Tests run programs as other users and where directories are read-only: create each file for them.
    for notes in build.rglob('*.gcno'):
        data = notes.with_suffix('.gcda')
        data.write_bytes(b'')
        data.chmod(0o666)
    log = build / 'meson-logs/testlog.json'
    log.unlink(missing_ok=True)
    subprocess.run(['meson', 'test', '-C', build, '--no-rebuild', '--suite', 'quick', '--no-suite', 'once',
                    '--timeout-multiplier', '2', '--num-processes', str((os.cpu_count() * 3 + 1) // 2)],
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    with open(log, encoding='utf-8', errors='replace') as lines:
        tests = [json.loads(line) for line in lines if line.strip()]
    bad = {test['name'].rpartition(' / ')[2] for test in tests if test['result'] not in ('OK', 'SKIP')}
    return len(tests), sorted(bad - EXPECTED_FAILURES)


def read(build, objects):
    """{source file: {line: was run}} of some objects."""
    done = subprocess.run(['gcov', '--json-format', '--stdout', *objects], cwd=build, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    files = collections.defaultdict(dict)
    for text in done.stdout.splitlines():
        if not text.startswith(b'{'):
            continue
        report = json.loads(text)
        for file in report['files']:
            name = os.path.relpath(os.path.join(report['current_working_directory'], file['file']), SOURCE)
            if name.startswith(('lib/', 'bin/')):
                lines = files[name]
                for line in file['lines']:
                    number = line['line_number']
                    lines[number] = lines.get(number, False) or line['count'] > 0
    return files


def room(name):
    parts = pathlib.PurePath(name).parts[:-1]
    return '/'.join(parts[:3 if parts[:2] == ('lib', 'train') else 2])


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    tests, failed = run_suite(build, sys.argv[2:])
    for data in build.rglob('*.gcda'):
        if not data.stat().st_size:
            data.unlink()  # nothing ran it, and gcov refuses an empty file
    objects = sorted(str(notes.relative_to(build)) for notes in build.rglob('*.gcno'))
    batches = [objects[i:i + BATCH] for i in range(0, len(objects), BATCH)]
    files = collections.defaultdict(dict)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for part in pool.map(lambda batch: read(build, batch), batches):
            for name, lines in part.items():
                for number, ran in lines.items():
                    files[name][number] = files[name].get(number, False) or ran
    if not files:
        sys.exit('coverage: gcov reports no line: is gcov of the same version as the compiler?')

    rooms = collections.defaultdict(lambda: [0, 0])
    for name, lines in files.items():
        for key in room(name), 'total':
            rooms[key][0] += sum(lines.values())
            rooms[key][1] += len(lines)
    percent = {name: 100 * hit / all_ for name, (hit, all_) in rooms.items()}
    print(f'line coverage of {tests} quick tests:')
    for name in sorted(rooms, key=lambda name: (name == 'total', name)):
        print(f'  {name:28} {rooms[name][0]:6} of {rooms[name][1]:6}  {percent[name]:5.1f} %')
    low = [f'{name} ({percent[name]:.1f} %)' for name in sorted(rooms) if percent[name] < FLOOR]
    print(f'rooms below {FLOOR} %: ' + (', '.join(low) or 'none'))
    if failed:
        print('failed in the build for coverage: ' + ', '.join(failed))


if __name__ == '__main__':
    main()
