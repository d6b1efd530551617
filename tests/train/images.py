# SPDX-License-Identifier: BSD-3-Clause
"""Samples of imagefolder compared with torchvision's: images.py IMAGE_TENSOR [bench].

Files, classes and their order must be ImageFolder's. The network's input is compared with torchvision's
transforms on PIL images, with the crop and flip of the Philox rule, which is computed here again. If the
decoder itself scales the image down (a crop at least twice as large as its result), the pixels differ
slightly from a full decode; the test prints and bounds the difference.

bench: images per second on one core (by CPU time, so that other work does not count), compared with
torchvision's on the same files.
"""
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

try:
    import numpy
    import PIL.Image
    import PIL.ImageDraw
    import torch
    from torchvision import datasets, transforms
    from torchvision.transforms import functional
except ImportError as missing:
    print(f'skipped: {missing}; install python3-torchvision and python3-pil')
    sys.exit(77)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def philox(seed, counter):
    key, c = [seed & 0xffffffff, seed >> 32], list(counter)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ key[0], p1 & 0xffffffff,
             (p0 >> 32) ^ c[3] ^ key[1], p0 & 0xffffffff]
        key = [(key[0] + 0x9E3779B9) & 0xffffffff, (key[1] + 0xBB67AE85) & 0xffffffff]
    return c


def crop(width, height, seed, epoch, index):
    """torchvision's RandomResizedCrop.get_params with the random words that augment.h specifies."""
    low, high = math.log(3 / 4), math.log(4 / 3)
    for draw in range(1, 11):
        words = philox(seed, (epoch, index, draw, 0))
        area = height * width * (0.08 + 0.92 * (words[0] / 2**32))
        ratio = math.exp(low + (high - low) * (words[1] / 2**32))
        w, h = int(round(math.sqrt(area * ratio))), int(round(math.sqrt(area / ratio)))
        if 0 < w <= width and 0 < h <= height:
            return words[2] * (height - h + 1) >> 32, words[3] * (width - w + 1) >> 32, h, w
    ratio, w, h = width / height, width, height
    if ratio < 3 / 4:
        h = int(round(w / (3 / 4)))
    elif ratio > 4 / 3:
        w = int(round(h * (4 / 3)))
    return (height - h) // 2, (width - w) // 2, h, w


def picture(width, height, seed):
    """Smooth shapes and some noise, which compress like a photograph."""
    random = numpy.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=numpy.uint8)
    smooth = PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.BICUBIC)
    draw = PIL.ImageDraw.Draw(smooth)
    for _ in range(20):
        x, y, r = random.integers(0, width), random.integers(0, height), random.integers(3, 60)
        draw.ellipse([int(x - r), int(y - r), int(x + r), int(y + r)],
                     fill=tuple(int(v) for v in random.integers(0, 256, 3)))
    noise = random.normal(0, 12, (height, width, 3))
    return PIL.Image.fromarray(
        numpy.clip(numpy.asarray(smooth) + noise, 0, 255).astype(numpy.uint8))


SIZES = [(500, 375), (375, 500), (333, 333), (300, 1000), (1000, 250), (64, 48), (1, 1), (7, 300),
         (1600, 1200), (2400, 1800)]


def make(root):
    for split in ('train', 'val'):
        for name in ('b-class', 'a class', 'Z'):
            os.makedirs(f'{root}/{split}/{name}/inner/deep')
            os.makedirs(f'{root}/{split}/{name}/inner-')
    for n, size in enumerate(SIZES):
        for split in ('train', 'val'):
            picture(*size, n).save(f'{root}/{split}/a class/{n:02}.jpg', quality=90)
    picture(320, 240, 50).save(f'{root}/train/Z/inner/deep/q.JPEG', quality=70, subsampling=0)
    picture(320, 240, 51).save(f'{root}/train/Z/inner-/p.jpg', quality=70, progressive=True)
    picture(320, 240, 52).convert('L').save(f'{root}/train/Z/grey.jpeg')
    picture(320, 240, 53).convert('CMYK').save(f'{root}/train/b-class/cmyk.jpg')
    picture(320, 240, 54).save(f'{root}/train/b-class/inner/x.jpg')
    with open(f'{root}/train/b-class/notes.txt', 'w', encoding='utf-8') as file:
        file.write('no image')
    for name in ('Z', 'b-class'):
        picture(100, 80, 60).save(f'{root}/val/{name}/one.jpg')


def ours(tool, root, split, side, seed, epoch, count):
    done = subprocess.run([tool, root, split, str(side), str(seed), str(epoch),
                           *map(str, range(count))], capture_output=True, timeout=120, check=False)
    if done.returncode:
        sys.exit(f'image-tensor ends with {done.returncode}: {done.stderr.decode()}')
    x = numpy.frombuffer(done.stdout, dtype=numpy.float32).reshape(count, 3, side, side)
    return x, [int(line) for line in done.stderr.split()]


def difference(mine, theirs):
    """-> the largest difference in grey levels, and the root mean square."""
    scale = numpy.array(STD, dtype=numpy.float64).reshape(3, 1, 1) * 255
    off = numpy.abs(mine.astype(numpy.float64) - theirs.numpy().astype(numpy.float64)) * scale
    return off.max(), math.sqrt((off ** 2).mean())


def compare(tool, root):
    faults = []
    worst = {'full': [0, 0, 0], 'reduced': [0, 0, 0]}
    normal = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    folders = {split: datasets.ImageFolder(f'{root}/{split}') for split in ('train', 'val')}
    for split, side, seed, epoch in [('val', 224, 0, 0), ('val', 64, 0, 0), ('train', 224, 5, 0),
                                     ('train', 224, 2**40 + 3, 7), ('train', 32, 9, 1)]:
        data = folders[split]
        # ImageFolder does not count a text file as an image either.
        x, labels = ours(tool, root, split, side, seed, epoch, len(data))
        if labels != [label for _, label in data.samples]:
            faults.append(f'{split}: the labels in order are {labels}, ImageFolder has '
                          f'{[label for _, label in data.samples]}')
        for index, (image, _) in enumerate(data):
            if split == 'val':
                resized = int(side * 256 / 224 + 0.5)
                width, height = image.size
                whole = functional.resize(image, resized)
                area = (0, 0, height, width)
                goal = min(whole.size), min(whole.size)
                result = functional.center_crop(whole, side)
            else:
                top, left, high, wide = crop(*image.size, seed, epoch, index)
                area = (top, left, high, wide)
                goal = side, side
                result = functional.resized_crop(image, top, left, high, wide, (side, side))
                if philox(seed, (epoch, index, 0, 0))[2] < 2**31:
                    result = functional.hflip(result)
            most, mean = difference(x[index], normal(result))
            reduced = min(area[2], area[3]) >= 2 * min(goal)
            kind = worst['reduced' if reduced else 'full']
            kind[0] = max(kind[0], most)
            kind[1] = max(kind[1], mean)
            kind[2] += 1
            # Only float rounding of the normalisation; a decoder that scales down has its own filter.
            if most > (60 if reduced else 0.01) or mean > (6 if reduced else 0.001):
                faults.append(f'{split} {side} sample {index} {image.size} {area}: differs by '
                              f'{most:.3g} grey levels at most, {mean:.3g} in the mean')
    for kind, (most, mean, count) in worst.items():
        print(f'{count} samples with a {kind} decode: at most {most:.3g} grey levels from '
              f"torchvision's, root of the mean square {mean:.3g}")
        if not count:
            faults.append(f'no sample had a {kind} decode')
    print('\n'.join(faults))
    return 1 if faults else 0


def bench(tool, root):
    shutil.rmtree(f'{root}/train')
    os.makedirs(f'{root}/train/one')
    sizes = []
    for n in range(64):
        name = f'{root}/train/one/{n:02}.jpg'
        picture(500, 375, n).save(name, quality=87)
        sizes.append(os.path.getsize(name))
    torch.set_num_threads(1)
    data = datasets.ImageFolder(f'{root}/train', transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
        transforms.ToTensor(), transforms.Normalize(MEAN, STD)]))
    mine, theirs = [], []
    for _ in range(3):
        mine.append(float(subprocess.run([tool, root, 'bench', '224', '5'], capture_output=True,
                                         timeout=120, check=True).stdout))
        begin, count = time.thread_time(), 0
        while time.thread_time() - begin < 5:
            data[count % len(data)]
            count += 1
        theirs.append(count / (time.thread_time() - begin))
    print(f'500x375, {sum(sizes) / len(sizes) / 1000:.0f} kB each, to 224x224 floats, a core (seconds '
          f'of CPU), best of 3 in turns: {max(mine):.0f} images/s, torchvision with Pillow '
          f'{PIL.__version__} {max(theirs):.0f}, ratio {max(mine) / max(theirs):.2f}')


def main():
    root = tempfile.mkdtemp(prefix='berth-images-')
    try:
        make(root)
        return bench(sys.argv[1], root) if sys.argv[2:] == ['bench'] else compare(sys.argv[1], root)
    finally:
        shutil.rmtree(root)


if __name__ == '__main__':
    sys.exit(main())
