#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Check README.md and docs/.
    docs.py links ROOT             relative links and anchors lead somewhere; named files exist
    docs.py phrases ROOT           phrases that style rules replaced do not come back
    docs.py requests ROOT          who requests GPUs also requests cores; what Slurm requeues appends to its output
    docs.py protocol ROOT          docs/protocol.md names the messages of lib/overlay/message_list.h, and no others
    docs.py words ROOT             the code has the words of docs/architecture.md, and none that they replaced
    docs.py commands ROOT BERTH    docs/reference/commands.md is what --help prints
"""
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r'!?\[[^\]]*\]\(([^)\s]+)\)')
NAMED = re.compile(r'(?:^|[`(\s])((?:lib|bin|tests|jobscripts|examples|docs)/[A-Za-z0-9_./*{},-]+)')
# Phrases of the dialect that the project once spoke, as regular expressions. SOURCES: in code and tests, too.
SOURCES = [
    r'go(es|ne)? on from', r'beside the training', r'\bnobody\b', r'\b(is|are|was|were) told\b', r'\b(is|are|was|were) said\b',
    r'\ba node a\b', r'\bfor who has\b', r'\bmade data\b', r'\bmended\b', r'where it is (not )?there', r'\ba file a rank\b',
    r'\bone agent a node\b', r'\bone a GPU\b', r'\bfor want of\b', r'\bpretended nodes\b', r'\bthe strangers?\b', r'\bqueued? again\b',
    r'(?<!there\s)\bis no (file|directory|failure|member|number|checkpoint|JSON|port|name|host|time)\b',
]
PHRASES = SOURCES + [r'\bby TM\b', r'\bfolders?\b', r'\btells\b', r'\btold\b']


def pages(root):
    names = 'README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'CHANGELOG.md', 'examples/README.md'
    return [root / name for name in names] + sorted((root / 'docs').rglob('*.md'))


def without_code(text):
    """The text without indented and fenced blocks: those hold output of berth."""
    text = re.sub(r'^```.*?^```', '', text, flags=re.MULTILINE | re.DOTALL)
    return '\n'.join('' if line.startswith('    ') else line for line in text.split('\n'))


def anchors(path):
    found = set()
    for title in re.findall(r'^#+ (.+)$', path.read_text(), re.MULTILINE):
        plain = re.sub(r'[^\w\- ]', '', title.lower()).strip()
        found.add(plain.replace(' ', '-'))
    return found


def links(root):
    wrong = []
    for page in pages(root):
        text = without_code(page.read_text())
        for target in LINK.findall(text):
            if re.match(r'[a-z]+:', target):
                continue
            name, _, anchor = target.partition('#')
            path = (page.parent / name).resolve() if name else page
            if not path.exists():
                wrong.append(f'{page.relative_to(root)}: link to {target}: no such file')
            elif anchor and anchor not in anchors(path):
                wrong.append(f'{page.relative_to(root)}: link to {target}: no such heading')
        if 'decisions' in page.parts or page.name == 'CHANGELOG.md':
            continue  # these name files of the past, too
        for name in NAMED.findall(text):
            name = name.rstrip('.,')
            if '{' in name:
                before, _, rest = name.partition('{')
                middle, _, after = rest.partition('}')
                names = [before + part + after for part in middle.split(',')]
            else:
                names = [name]
            for each in names:
                if not any(root.glob(each.rstrip('/'))) and not re.search(r'NAME|NNNN|DIR', each):
                    wrong.append(f'{page.relative_to(root)}: names {each}: no such file')
    return wrong


def joined(text):
    """The text without the marks that stand between two lines of a comment or of a string literal."""
    return re.sub(r'"[ \t]*\n\s*"', '\n', re.sub(r'\n[ \t]*(?:\*|#|//)[ \t]', '\n ', text))


def phrases(root):
    wrong = []
    suffixes = ('.c', '.h', '.cu', '.cuh', '.cc', '.py', '.sh', '.bash', '.bats', '.build', '.scd', '.in', '.tsv', '.lua')
    places = 'lib', 'bin', 'tests', 'jobscripts', 'modulefiles', 'examples'
    sources = [path for place in places for path in sorted((root / place).rglob('*'))
               if path.suffix in suffixes and path.name != 'docs.py']
    searched = [(page, PHRASES) for page in pages(root) if page.parent.name != 'decisions']
    for page, forbidden in searched + [(page, SOURCES) for page in sources]:
        text = without_code(page.read_text()) if page.suffix == '.md' else joined(page.read_text())
        for phrase in forbidden:
            for match in re.finditer(phrase.replace(' ', r'\s+'), text):
                line = text[:match.start()].count('\n') + 1
                wrong.append(f'{page.relative_to(root)}:{line}: "{" ".join(match.group().split())}"')
    return wrong


def requests(root):
    """Also in job scripts, help texts and man pages."""
    wrong = []
    sources = [path for place in ('lib', 'bin', 'jobscripts', 'examples') for path in sorted((root / place).rglob('*')) if path.is_file()]
    for path in pages(root) + sources:
        # A C string and a wrapped help text continue on the next line.
        text = re.sub(r'"\n\s*"|\n(?=--|[a-z]+=)', '', path.read_text(errors='replace'))
        for number, line in enumerate(text.split('\n'), 1):
            if re.search(r'--gpus-per-node[= ]\d', line) and not re.search(r'--cpus-per-|alone', line):
                wrong.append(f'{path.relative_to(root)}:{number}: requests GPUs without --cpus-per-gpu or --cpus-per-node')
            if re.search(r'ngpus=\d', line) and path.suffix != '.c' and 'ncpus=' not in line:
                wrong.append(f'{path.relative_to(root)}:{number}: requests GPUs without ncpus=')
            if re.search(r'#SBATCH( -\S+)* --requeue', line) and '--open-mode=append' not in line:
                wrong.append(f'{path.relative_to(root)}:{number}: --requeue without --open-mode=append')
        if path.suffix == '.sh' and '#SBATCH' in text and re.search(' run .*--requeue', text) and '--open-mode=append' not in text:
            wrong.append(f'{path.relative_to(root)}: requeues the job without --open-mode=append')
    return wrong


def protocol(root):
    sent = set(re.findall(r'^MESSAGE(?:_WITH)?\((\w+), \d', (root / 'lib/overlay/message_list.h').read_text(), re.MULTILINE))
    section = (root / 'docs/protocol.md').read_text().split('## Messages')[1].split('\n## ')[0]
    named = set(re.findall(r'\b[A-Z]{2,}(?:_[A-Z]+)*\b', section)) - {'JSON'}
    return ([f'docs/protocol.md does not name {name}' for name in sorted(sent - named)] +
            [f'docs/protocol.md names {name}, which is not in lib/overlay/message_list.h' for name in sorted(named - sent)])


def words(root):
    code = '\n'.join(path.read_text() for place in ('lib', 'bin') for path in sorted((root / place).rglob('*.[ch]'))
                     if 'device' not in path.parts)  # cuDNN has its own words
    code = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', '', code, flags=re.DOTALL)
    names = set(re.findall(r'^(?:struct|enum)\s+(\w+)\s*\{|^[a-z][\w \t*]*?[ *](\w+)\(', code, re.MULTILINE))
    used = {word: name for pair in names for name in pair for word in name.split('_')}
    section = (root / 'docs/architecture.md').read_text().split('## Words')[1].split('\n## ')[0]
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in section.splitlines() if line.startswith('| ')][1:]
    wrong = [] if len(rows) > 10 else ['docs/architecture.md has no table of words']
    for word, _, inside, instead in rows:
        name = inside.strip('`')
        if not re.search(rf'\b{re.escape(name)}\b', code):
            wrong.append(f'{word}: the code has no {name}')
        wrong += [f'{word}: {used[other]} has the word {other}' for other in re.findall(r'\w+', instead) if other in used]
    return wrong


def commands(root, berth):
    want = subprocess.run([sys.executable, root / 'docs/reference/commands.py', berth], check=True, capture_output=True, text=True).stdout
    if want == (root / 'docs/reference/commands.md').read_text():
        return []
    return ['docs/reference/commands.md differs from --help: docs/reference/commands.py BERTH > docs/reference/commands.md']


def main(what, root, *rest):
    checks = {'links': links, 'phrases': phrases, 'requests': requests, 'protocol': protocol, 'words': words, 'commands': commands}
    wrong = checks[what](pathlib.Path(root).resolve(), *rest)
    print('\n'.join(wrong) or f'{what}: nothing wrong')
    sys.exit(bool(wrong))


main(*sys.argv[1:])
