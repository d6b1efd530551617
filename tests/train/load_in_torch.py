# SPDX-License-Identifier: BSD-3-Clause
# load_in_torch.py BERTH: the weights of a checkpoint (all tensors except berth.*) load into the same PyTorch
# modules with strict=True.
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    print('skipped: this python3 has no torch (Debian: python3-torch)')
    sys.exit(77)


class Convnet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 6, 5), torch.nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = torch.nn.Linear(16, 120), torch.nn.Linear(120, 84), torch.nn.Linear(84, 5)


def read(path):
    data = open(path, 'rb').read()
    size = struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:8 + size])
    out = {}
    for name, entry in header.items():
        if name == '__metadata__' or name.startswith('berth.'):
            continue
        begin, end = (8 + size + at for at in entry['data_offsets'])
        assert entry['dtype'] == 'F32'
        out[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(entry['shape'])
    return out


for model, make in {'linear': lambda: torch.nn.Linear(256, 5), 'convnet': Convnet}.items():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], 'train', model, '-n', '1', '--data', 'synthetic:1x16x16,n=64,classes=5',
                        '--steps', '3', '--ckpt', folder, '--no-eval'], check=True, timeout=60,
                       stdout=subprocess.DEVNULL)
        weights = read(os.path.join(folder, 'step-00000003.safetensors'))
        module = make()
        module.load_state_dict(weights, strict=True)
        print(model, 'loads:', ', '.join(weights))
