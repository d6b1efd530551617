# SPDX-License-Identifier: BSD-3-Clause
"""Do --help, the parser and the man pages agree? For every verb of berth: the man page that page.py
fills in has each option of --help with the same letter and argument; the parser knows it; and the
version is the same everywhere.
    options.py BERTH VERSION PAGE_PY MAN_PAGE.scd..."""
import re
import subprocess
import sys

# argp adds these to every verb; berth(1) describes them once.
ARGP_OWN = {'help', 'usage'}

LONG = re.compile(r'--(?P<long>[a-z][a-z0-9-]*)(?P<arg>\[?=)?')
MAN = re.compile(r'[*]-(?P<letter>\w)[*]|[*]--(?P<long>[a-z][a-z0-9-]*)[*](?P<arg> _)?')


def run(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=30, check=False)


def help_options(text):
    """{long: (letter or None, takes an argument)} of argp's --help; an alias has its own entry."""
    options = {}
    for line in text.splitlines():
        found = re.match(r'^ {2,6}(-\S.*)$', line)
        if not found:
            continue
        names = re.split(r'  +', found.group(1))
        # "-n, --ranks=N" may be followed by its text on the same line, after two blanks.
        entry = names[0]
        letter = re.match(r'-([\w?])(?:,|=|$| )', entry)
        argument = '=' in entry
        for long in LONG.finditer(entry):
            if long['long'] not in ARGP_OWN:
                options[long['long']] = (letter.group(1) if letter else None, argument)
    return options


def man_options(text):
    options = {}
    in_options = False
    for line in text.splitlines():
        if line.startswith('# '):
            in_options = 'OPTIONS' in line
        if in_options and line.startswith('*-'):
            names = list(MAN.finditer(line))
            letter = next((name['letter'] for name in names if name['letter']), None)
            options.update({name['long']: (letter, bool(name['arg'])) for name in names if name['long']})
    return options


def parser_knows(berth, verb, long, argument):
    """Run with the option and --help. Any error is fine, except that the option does not exist."""
    answer = run(berth, verb, f'--{long}=1' if argument else f'--{long}', '--help')
    said = re.search(r"unrecognized option|ambiguous|doesn't allow|requires an argument",
                     answer.stderr)
    return said.group(0) if said else None


def refused(berth, verb):
    """Errors that argp itself detects must have berth's format."""
    for wrong in '--no-such-option', '--no-such=1', '-@':
        answer = run(berth, verb, wrong)
        if (answer.returncode, answer.stdout) != (64, '') or not re.fullmatch(
                rf"berth: error: (unrecognized|invalid) option .*\(berth {verb} --help lists the options\)\n", answer.stderr):
            yield f'{verb} {wrong} exits with code {answer.returncode} and prints {answer.stderr!r}'


def check_verb(berth, verb, page):
    faults = list(refused(berth, verb))
    help_text = run(berth, verb, '--help')
    if help_text.returncode:
        return [f'{verb} --help ends with {help_text.returncode}: {help_text.stderr.strip()}']
    if run(berth, verb, '-h').stdout != help_text.stdout:
        faults.append(f'{verb} -h does not print what {verb} --help prints')
    shown, told = help_options(help_text.stdout), man_options(page)
    if not shown:
        faults.append(f'{verb} --help shows no option that this test can read')
    for long in sorted(shown.keys() | told.keys()):
        if long not in told:
            faults.append(f'{verb} --{long}: in --help, not in the man page')
        elif long not in shown:
            faults.append(f'{verb} --{long}: in the man page, not in --help')
        else:
            if told[long] != shown[long]:
                faults.append(f'{verb} --{long}: (letter, argument) is {shown[long]} in --help, '
                              f'{told[long]} in the man page')
            said = parser_knows(berth, verb, long, shown[long][1])
            if said:
                faults.append(f'{verb} --{long}: the parser says "{said}"')
    return faults


def main():
    berth, version, page_py, *paths = sys.argv[1:]
    pages = {}
    for path in paths:
        pages[re.sub(r'.*/berth-?|\.\d\.scd$', '', path)] = run(sys.executable, page_py, path, berth, version).stdout
    faults = []
    told = run(berth, '--version').stdout.splitlines()[0]
    if told != f'berth {version}':
        faults.append(f'berth --version prints {told!r}, meson has {version}')
    for name, page in pages.items():
        if f'"berth {version}"' not in page.splitlines()[0]:
            faults.append(f'man page {name or "berth"}: its first line has another version: '
                          + page.splitlines()[0])
    verbs = re.findall(r'^  ([a-z]+) ', run(berth, '--help').stdout, re.MULTILINE)
    if not verbs:
        faults.append('berth --help lists no verb')
    for verb in verbs:
        if verb in pages:
            faults += check_verb(berth, verb, pages[verb])
            if f'*berth-{verb}*(' not in pages['']:
                faults.append(f'{verb}: berth(1) does not name its page')
        else:
            faults.append(f'{verb}: no man page berth-{verb}.*.scd')
    print('\n'.join(faults) or f'{len(verbs)} verbs agree: {" ".join(verbs)}')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
