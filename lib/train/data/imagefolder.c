/* SPDX-License-Identifier: BSD-3-Clause */
/* DIR/train/CLASS/.../NAME.jpg and DIR/val/CLASS/.../NAME.jpg, as torchvision's ImageFolder. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/module.h"
#include "train/data/dataset.h"
#include "train/data/image_files.h"
#include "train/data/imagefolder.h"
#include "train/data/jpeg.h"

#define SIDE 224
#define MAX_FILE_BYTES ((off_t)1 << 28)

struct imagefolder {
	struct dataset dataset;
	const struct jpeg_ops *jpeg;
	char *root; /* DIR/train or DIR/val */
	struct imagefolder_files files;
};

/* ---- crops ---- */

void imagefolder_center(int width, int height, int side, struct jpeg_crop *out)
{
	/* torchvision's Resize(side * 256 / 224) of the short side, then CenterCrop(side). Python's
	 * int() truncates, and its round() rounds halves to even. */
	int resized = (side * 256 + SIDE / 2) / SIDE;
	int shorter = width < height ? width : height, longer = width < height ? height : width;
	int64_t other = (int64_t)resized * longer / shorter;

	*out = (struct jpeg_crop){.width = width, .height = height, .side = side};
	if (other > INT_MAX / 4)
		other = INT_MAX / 4;
	out->full_width = width < height ? resized : (int)other;
	out->full_height = width < height ? (int)other : resized;
	out->left = (int)rint((out->full_width - side) / 2.0);
	out->top = (int)rint((out->full_height - side) / 2.0);
}

void imagefolder_resized_crop(int width, int height, int side, uint64_t seed, uint32_t epoch,
			      uint32_t index, struct jpeg_crop *out)
{
	const double ratios[] = {3.0 / 4, 4.0 / 3};
	const double low = log(ratios[0]), high = log(ratios[1]);

	*out = (struct jpeg_crop){.full_width = side, .full_height = side, .side = side};
	for (uint32_t i = 0; i < 10; i++) {
		uint32_t words[4];

		augment_draw(seed, epoch, index, AUGMENT_DRAW_RESIZED + i, words);
		double area = (double)width * height * (0.08 + 0.92 * (words[0] * 0x1p-32));
		double ratio = exp(low + (high - low) * (words[1] * 0x1p-32));
		double w = rint(sqrt(area * ratio)), h = rint(sqrt(area / ratio));

		if (w < 1 || w > width || h < 1 || h > height)
			continue;
		out->width = (int)w;
		out->height = (int)h;
		out->y = (int)augment_below(words[2], (uint32_t)(height - out->height) + 1);
		out->x = (int)augment_below(words[3], (uint32_t)(width - out->width) + 1);
		return;
	}
	/* The largest central part whose aspect ratio is allowed. */
	double ratio = (double)width / height;

	out->width = ratio > ratios[1] ? (int)rint(height * ratios[1]) : width;
	out->height = ratio < ratios[0] ? (int)rint(width / ratios[0]) : height;
	out->x = (width - out->width) / 2;
	out->y = (height - out->height) / 2;
}

struct choice {
	const struct dataset *dataset;
	uint32_t index, epoch;
};

static void choose(void *context, int width, int height, struct jpeg_crop *out)
{
	const struct choice *choice = context;
	const struct dataset *dataset = choice->dataset;

	if (dataset->augment.resized_crop)
		imagefolder_resized_crop(width, height, dataset->shape.width, dataset->augment_seed,
					 choice->epoch, choice->index, out);
	else
		imagefolder_center(width, height, dataset->shape.width, out);
}

/* ---- a sample ---- */

static int read_file(const char *path, struct dataset_buffer *capacity, size_t *size,
		     struct error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no waiting for a FIFO */
	struct stat st;
	size_t used = 0;
	ssize_t n = 1;

	if (fd < 0 || fstat(fd, &st)) {
		int rc = error_set(err, ERR_INPUT, "cannot read %s: %s", path, strerror(errno));

		if (fd >= 0)
			close(fd);
		return rc;
	}
	*size = (size_t)st.st_size;
	unsigned char *bytes = NULL;
	int rc = 0;

	if (!S_ISREG(st.st_mode) || st.st_size < 1 || st.st_size > MAX_FILE_BYTES)
		rc = error_set(err, ERR_DATA, "%s: %s", path,
			       !S_ISREG(st.st_mode) ? "not a regular file"
			       : st.st_size < 1	    ? "the file is empty"
						    : "the file is too large for an image");
	else if (!(bytes = dataset_reserve(capacity, *size)))
		rc = error_memory(err, path);
	while (!rc && used < *size && n != 0) {
		n = read(fd, bytes + used, *size - used);
		if (n < 0 && errno != EINTR)
			rc = error_set(err, ERR_IO, "cannot read %s: %s", path, strerror(errno));
		if (n > 0)
			used += (size_t)n;
	}
	close(fd);
	*size = used;
	return rc;
}

static int imagefolder_sample(const struct dataset *dataset, uint32_t index, uint32_t epoch,
			      struct dataset_scratch *scratch, void *raw, void *target,
			      struct error *err)
{
	const struct imagefolder *directory = (const struct imagefolder *)dataset;
	const struct imagefolder_file *file = &directory->files.list[index];
	struct choice choice = {dataset, index, epoch};
	char path[PATH_MAX];
	size_t size = 0;

	if (snprintf(path, sizeof path, "%s/%s", directory->root,
		     (const char *)directory->files.paths.data + file->path) >= (int)sizeof path)
		return error_set(err, ERR_INPUT, "the path of %s is too long", path);
	int rc = read_file(path, &scratch->file, &size, err);

	if (rc)
		return rc;
	const struct jpeg_request request = {path, choose, &choice};

	*(int32_t *)target = file->label;
	return directory->jpeg->decode(&request, scratch->file.bytes, size, raw, &scratch->rows,
				       err);
}

/* ---- open ---- */

static int add_classes(struct imagefolder *directory, const struct imagefolder_names *own,
		       const struct imagefolder_names *train, struct error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < own->count; i++) {
		int label = imagefolder_class_index(train, own->list[i]);

		if (label < 0)
			return error_set(err, ERR_DATA,
					 "%s/%s: the training split has no class of this name. "
					 "Rename or remove the directory",
					 directory->root, own->list[i]);
		rc = imagefolder_add(&directory->files, directory->root, own->list[i], label, err);
	}
	if (!rc && directory->files.count > UINT32_MAX)
		rc = error_set(err, ERR_DATA, "%s has more files than can be counted",
			       directory->root);
	return rc;
}

/* A class has the same index in val as in train, even if val lacks other classes. */
static int load_folder(struct imagefolder *directory, const struct dataset_request *request,
		       struct error *err)
{
	struct imagefolder_names train = {0}, own = {0};
	char *first = NULL;
	int rc = 0;

	if (asprintf(&first, "%s/train", request->argument) < 0 ||
	    asprintf(&directory->root, "%s/%s", request->argument, split_name(request->split)) < 0)
		return error_memory(err, "a file name");
	if (access(first, F_OK) || access(directory->root, F_OK))
		rc = error_set(err, ERR_INPUT,
			       "%s is missing (%s): expected DIR/train/CLASS/NAME.jpg and "
			       "DIR/val/CLASS/NAME.jpg%s",
			       access(first, F_OK) ? first : directory->root, strerror(errno),
			       request->split == SPLIT_VAL
				       ? "; with --no-eval, DIR/val is not needed"
				       : "");
	if (!rc)
		rc = imagefolder_classes(first, &train, err);
	/* A single class means regression elsewhere, and labels would be read as numbers. */
	if (!rc && train.count < 2)
		rc = error_set(err, ERR_DATA,
			       "%s holds only one directory, %s: expected one per class and at "
			       "least two classes",
			       first, train.list[0]);
	if (!rc)
		rc = imagefolder_classes(directory->root, &own, err);
	if (!rc)
		rc = add_classes(directory, &own, &train, err);
	directory->dataset.classes = (int)train.count;
	directory->dataset.count = (int64_t)directory->files.count;
	imagefolder_names_free(&train);
	imagefolder_names_free(&own);
	free(first);
	return rc;
}

static int imagefolder_open(struct dataset *dataset, const struct dataset_request *request,
			    struct error *err)
{
	struct imagefolder *directory = (struct imagefolder *)dataset;
	int side = request->image_size ? request->image_size : SIDE;
	void *jpeg;
	int rc = module_load(JPEG_MODULE, "data_jpeg", request->module_path, 0, &jpeg, err);

	if (rc)
		return error_prefix(err, "reading JPEG files requires libjpeg");
	directory->jpeg = jpeg;
	dataset->shape = (struct shape){3, side, side};
	rc = load_folder(directory, request, err);
	dataset->skipped_files = directory->files.skipped_files;
	return rc;
}

static void imagefolder_close(struct dataset *dataset)
{
	struct imagefolder *directory = (struct imagefolder *)dataset;

	imagefolder_files_free(&directory->files);
	free(directory->root);
}

const struct dataset_format dataset_imagefolder = {
	.name = "imagefolder",
	.size = sizeof(struct imagefolder),
	.files = true,
	.needs_directory = true,
	.augment = {.resized_crop = true, .flip = true},
	.bytes = true,
	.mean = {0.485f, 0.456f, 0.406f},
	.deviation = {0.229f, 0.224f, 0.225f},
	.open = imagefolder_open,
	.sample = imagefolder_sample,
	.close = imagefolder_close,
};
