/* SPDX-License-Identifier: BSD-3-Clause */
/* CIFAR-10 and CIFAR-100, binary version: files of records, each its labels and 3x32x32 bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/data/dataset.h"

#define PIXELS (3 * 32 * 32)
#define MAX_FILES 5

const struct cifar_layout cifar10_layout = {10000, 1, {10}};
const struct cifar_layout cifar100_train_layout = {50000, 2, {20, 100}};
const struct cifar_layout cifar100_test_layout = {10000, 2, {20, 100}};

/* The files of a split. */
struct parts {
	const char *files[MAX_FILES + 1];
	const struct cifar_layout *layout;
};

/* What differs between the two. */
struct details {
	const char *subdirectory;     /* where the archive puts the files */
	const char *python_directory; /* of the Python version, which is not supported */
	struct parts train, test;
};

struct cifar {
	struct dataset dataset;
	const struct cifar_layout *layout;
	unsigned char *bytes; /* all records */
};

static size_t record_size(const struct cifar_layout *layout)
{
	return (size_t)layout->label_bytes + PIXELS;
}

static size_t file_size(const struct cifar_layout *layout)
{
	return (size_t)layout->records * record_size(layout);
}

int cifar_check(const char *name, const unsigned char *bytes, size_t size,
		const struct cifar_layout *layout, struct error *err)
{
	size_t record = record_size(layout);

	if (size != file_size(layout))
		return error_set(err, ERR_DATA,
				 "%s has %zu bytes, expected %zu (%d records of %zu bytes). "
				 "Download the binary version of the data set again",
				 name, size, file_size(layout), layout->records, record);
	for (int i = 0; i < layout->records; i++)
		for (int k = 0; k < layout->label_bytes; k++) {
			int label = bytes[(size_t)i * record + (size_t)k];

			if (label >= layout->label_ends[k])
				return error_set(
					err, ERR_DATA,
					"%s: label %d of record %d is %d, expected 0 to %d: the "
					"file is damaged or belongs to another data set",
					name, k, i, label, layout->label_ends[k] - 1);
		}
	return 0;
}

/* Read a file of exactly the layout's length into out. */
static int read_file(const char *path, const struct cifar_layout *layout, unsigned char *out,
		     struct error *err)
{
	size_t want = file_size(layout), used = 0;
	struct stat st;
	int fd = dataset_open_file(path, &st, err);
	ssize_t n = 1;

	if (fd < 0)
		return fd;
	while (used < want && (n = read(fd, out + used, want - used)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		used += (size_t)n;
	}
	int error = errno;

	close(fd);
	if (n < 0)
		return error_set(err, ERR_IO, "cannot read %s: %s", path, strerror(error));
	/* A file that is too long is as wrong as a truncated one. */
	return cifar_check(path, out, used < want ? used : (size_t)st.st_size, layout, err);
}

static int path_of(const char *directory, const char *inner, const char *name, char *path,
		   size_t size, struct error *err)
{
	if (snprintf(path, size, "%s/%s%s%s", directory, inner, *inner ? "/" : "", name) >=
	    (int)size)
		return error_set(err, ERR_USAGE, "the directory name %s is too long", directory);
	return 0;
}

/* Find the first file in DIR, or in the subdirectory that the archive unpacks to. */
static int find_inner(const struct dataset_format *format, const char *first, const char *directory,
		      const char **inner, struct error *err)
{
	const struct details *details = format->details;
	const char *const places[] = {"", details->subdirectory};
	char path[4096];
	int rc;

	for (size_t i = 0; i < 2; i++) {
		rc = path_of(directory, places[i], first, path, sizeof path, err);
		if (rc)
			return rc;
		*inner = places[i];
		if (!access(path, F_OK))
			return 0;
	}
	int error = errno;

	rc = path_of(directory, details->python_directory, "", path, sizeof path, err);
	if (rc)
		return rc;
	if (!access(path, F_OK))
		return error_set(err, ERR_INPUT,
				 "%s holds the Python version of the data set, which berth cannot "
				 "read. Download the binary version, whose directory is named %s",
				 path, details->subdirectory);
	return error_set(err, ERR_INPUT,
			 "%s/%s is missing, and so is %s/%s/%s (%s). Unpack the binary version of "
			 "the data set and pass its directory as --data %s:DIR",
			 directory, first, directory, details->subdirectory, first, strerror(error),
			 format->name);
}

static int cifar_open(struct dataset *dataset, const struct dataset_request *request,
		      struct error *err)
{
	struct cifar *cifar = (struct cifar *)dataset;
	const struct details *details = dataset->format->details;
	const struct parts *parts =
		request->split == SPLIT_TRAIN ? &details->train : &details->test;
	const struct cifar_layout *layout = parts->layout;
	const char *directory = request->argument, *inner;
	char path[4096];
	int files = 0, rc = find_inner(dataset->format, parts->files[0], directory, &inner, err);

	if (rc)
		return rc;
	while (parts->files[files])
		files++;
	cifar->layout = layout;
	cifar->bytes = malloc((size_t)files * file_size(layout));
	if (!cifar->bytes)
		return error_memory(err, "the data");
	for (int i = 0; !rc && i < files; i++) {
		rc = path_of(directory, inner, parts->files[i], path, sizeof path, err);
		if (!rc)
			rc = read_file(path, layout, cifar->bytes + (size_t)i * file_size(layout),
				       err);
	}
	dataset->count = (int64_t)files * layout->records;
	dataset->shape = (struct shape){3, 32, 32};
	dataset->classes = layout->label_ends[layout->label_bytes - 1];
	return rc;
}

static void cifar_close(struct dataset *dataset)
{
	free(((struct cifar *)dataset)->bytes);
}

static int cifar_sample(const struct dataset *dataset, uint32_t index, uint32_t epoch,
			struct dataset_scratch *scratch, void *raw, void *target, struct error *err)
{
	const struct cifar *cifar = (const struct cifar *)dataset;
	const unsigned char *record = cifar->bytes + index * record_size(cifar->layout);

	*(int32_t *)target = record[cifar->layout->label_bytes - 1];
	if (raw)
		memcpy(raw, record + cifar->layout->label_bytes, PIXELS);
	return 0;
}

static const struct details cifar10 = {
	.subdirectory = "cifar-10-batches-bin",
	.python_directory = "cifar-10-batches-py",
	.train = {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
		   "data_batch_5.bin"},
		  &cifar10_layout},
	.test = {{"test_batch.bin"}, &cifar10_layout},
};
static const struct details cifar100 = {
	.subdirectory = "cifar-100-binary",
	.python_directory = "cifar-100-python",
	.train = {{"train.bin"}, &cifar100_train_layout},
	.test = {{"test.bin"}, &cifar100_test_layout},
};

/* Mean and deviation of the training images, the values in common use. */
const struct dataset_format dataset_cifar10 = {
	.name = "cifar10",
	.size = sizeof(struct cifar),
	.needs_directory = true,
	.details = &cifar10,
	.augment = {.crop_pad = 4, .flip = true},
	.bytes = true,
	.mean = {0.4914f, 0.4822f, 0.4465f},
	.deviation = {0.2470f, 0.2435f, 0.2616f},
	.open = cifar_open,
	.sample = cifar_sample,
	.close = cifar_close,
};

const struct dataset_format dataset_cifar100 = {
	.name = "cifar100",
	.size = sizeof(struct cifar),
	.needs_directory = true,
	.details = &cifar100,
	.augment = {.crop_pad = 4, .flip = true},
	.bytes = true,
	.mean = {0.5071f, 0.4865f, 0.4409f},
	.deviation = {0.2673f, 0.2564f, 0.2762f},
	.open = cifar_open,
	.sample = cifar_sample,
	.close = cifar_close,
};
