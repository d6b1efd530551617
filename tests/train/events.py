# SPDX-License-Identifier: BSD-3-Clause
"""Parse TensorBoard event files (TFRecord, protocol buffers) without TensorBoard, and compare them with
metrics.jsonl: events.py DIR. Events that a session start purges are left out, as in TensorBoard.
With --tensorboard, read them with the package tensorboard; exit with code 77 if it is not installed."""
import glob
import json
import os
import struct
import sys

TAGS = ('loss', 'lr', 'images_per_s', 'data_wait_ms')
TAGS = {'train': TAGS, 'val': TAGS + ('acc1', 'acc5')}


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(path):
    data = open(path, 'rb').read()
    while data:
        size, check = struct.unpack('<QI', data[:12])
        assert check == masked(data[:8]), f'{path}: wrong checksum of a length'
        body, (check,) = data[12:12 + size], struct.unpack('<I', data[12 + size:16 + size])
        assert check == masked(body), f'{path}: wrong checksum of a record'
        yield body
        data = data[16 + size:]


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7f) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            if kind == 2:
                size, at = varint(data, at)
            else:
                size = {1: 8, 5: 4}[kind]
            assert at + size <= len(data), 'a field goes past its end'
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def scalars(summary):
    for number, value in fields(summary):
        assert number == 1, 'a summary has values alone'
        value = dict(fields(value))
        yield value[1].decode(), struct.unpack('<f', value[2])[0]


def own(folder):
    """-> {(tag, step): value} after purging, and the number of sessions."""
    seen, sessions = {}, 0
    for path in sorted(glob.glob(f'{folder}/events.out.tfevents.*')):
        for place, record in enumerate(records(path)):
            event = dict(fields(record))
            assert struct.unpack('<d', event[1])[0] > 1e9, 'the wall time'
            step = event.get(2, 0)
            if place == 0:
                assert event[3] == b'brain.Event:2', 'a file begins with its version'
            elif place == 1:
                assert dict(fields(event[7])) == {1: 1}, 'then a session starts'
                seen = {key: value for key, value in seen.items() if key[1] < step}
                sessions += 1
            else:
                for tag, value in scalars(event[5]):
                    assert (tag, step) not in seen, f'{tag} of step {step} is there twice'
                    seen[tag, step] = value
    return seen, sessions


def packaged(folder):
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print('skipped: this python3 has no tensorboard')
        sys.exit(77)
    events = EventAccumulator(folder, size_guidance={'scalars': 0})
    events.Reload()
    seen = {}
    for tag in events.Tags()['scalars']:
        for event in events.Scalars(tag):
            assert (tag, event.step) not in seen, f'{tag} of step {event.step} is there twice'
            seen[tag, event.step] = event.value
    return seen, len(glob.glob(f'{folder}/events.out.tfevents.*'))


folder = sys.argv[-1]
read = packaged if '--tensorboard' in sys.argv else own
rows = [json.loads(line) for line in open(os.path.join(folder, 'metrics.jsonl'))]
for split, tags in TAGS.items():
    expected = {(tag, row['step']): row[tag] for row in rows if row['split'] == split for tag in tags}
    events, sessions = read(f'{folder}/{split}')
    assert events.keys() == expected.keys(), (split, sorted(events.keys() ^ expected.keys()))
    for key, value in expected.items():
        if value is None:
            assert not abs(events[key]) < float('inf'), (key, events[key])
        else:
            assert abs(events[key] - value) <= 1e-7 * abs(value), (key, events[key], value)
    print(f'{split}: {len(events)} values, {sessions} sessions')
