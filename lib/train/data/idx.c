/* SPDX-License-Identifier: BSD-3-Clause */
/* MNIST and Fashion-MNIST: IDX files, plain or gzipped. Images stay in memory as bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "train/data/dataset.h"

#define MAX_BYTES ((size_t)1 << 30) /* decompressed; a small hostile file cannot request more */
#define CLASSES 10
#define PATH_BYTES 4096

struct part {
	unsigned char *file;	    /* the whole file */
	int64_t sizes[3];	    /* its dimensions */
	const unsigned char *items; /* [sizes[0]]..., in file */
};

struct idx {
	struct dataset dataset;
	struct part images, labels;
};

static uint32_t big_endian(const unsigned char *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

int idx_parse(const char *name, const unsigned char *bytes, size_t size, int rank, int64_t *sizes,
	      const unsigned char **items, struct error *err)
{
	size_t header = 4 + 4 * (size_t)rank;
	uint64_t count = 1;

	if (size < header)
		return error_set(err, ERR_DATA,
				 "%s has %zu bytes, too few for an IDX header of %zu bytes. "
				 "Download the file again",
				 name, size, header);
	if (big_endian(bytes) != 0x0800u + (unsigned)rank)
		return error_set(err, ERR_DATA,
				 "%s begins with %08x, expected the IDX magic number %08x (bytes, "
				 "%d dimensions): it is not the expected file",
				 name, big_endian(bytes), 0x0800u + (unsigned)rank, rank);
	for (int i = 0; i < rank; i++) {
		uint32_t n = big_endian(bytes + 4 + 4 * i);

		if (!n || count > MAX_BYTES / n)
			return error_set(err, ERR_DATA,
					 "%s: dimension %d is %u, which is empty or too large",
					 name, i, n);
		count *= n;
		sizes[i] = n;
	}
	if (size - header != count)
		return error_set(err, ERR_DATA,
				 "%s holds %zu bytes of data, but its header promises %llu. "
				 "Download the file again",
				 name, size - header, (unsigned long long)count);
	*items = bytes + header;
	return 0;
}

static int open_zipped(const char *path, gzFile *out, struct error *err)
{
	struct stat st;
	int fd = dataset_open_file(path, &st, err);

	if (fd < 0)
		return fd;
	*out = gzdopen(fd, "rb");
	if (*out)
		return 0;
	close(fd);
	return error_memory(err, path);
}

/* The cause of an error, without the descriptor number that zlib prepends. */
static const char *zip_error(gzFile file)
{
	int code;
	const char *text = gzerror(file, &code), *colon = strstr(text, ": ");

	return *text == '<' && colon ? colon + 2 : text;
}

/* Read all of path, unzipping if it is zipped. */
static int read_unzipped(const char *path, unsigned char **out, size_t *size, struct error *err)
{
	gzFile file = NULL;
	size_t used = 0, capacity = 1 << 20;
	unsigned char *bytes = malloc(capacity);
	int rc = bytes ? open_zipped(path, &file, err) : error_memory(err, path), n = 0;

	while (!rc && (n = gzread(file, bytes + used, (unsigned)(capacity - used))) > 0) {
		used += (size_t)n;
		if (used < capacity)
			continue;

		unsigned char *grown = capacity < MAX_BYTES ? realloc(bytes, capacity * 2) : NULL;

		if (!grown)
			rc = error_set(err, ERR_DATA, "%s has more than %zu MiB when decompressed",
				       path, capacity >> 20);
		else
			bytes = grown;
		capacity *= 2;
	}
	if (!rc && n < 0)
		rc = error_set(err, ERR_DATA, "%s: %s. Download the file again", path,
			       zip_error(file));
	/* A truncated gzip stream reads as if it ended; only closing reports it. */
	if (file && gzclose(file) != Z_OK && !rc)
		rc = error_set(err, ERR_DATA,
			       "%s: the gzip stream is truncated. Download the file again", path);
	if (rc) {
		free(bytes);
		return rc;
	}
	*out = bytes;
	*size = used;
	return 0;
}

/* Read and parse DIR/NAME or DIR/NAME.gz of the request's split. path becomes the file's name. */
static int read_part(const struct dataset_request *request, const char *what, int rank,
		     const char *advice, char path[PATH_BYTES], struct part *out, struct error *err)
{
	static const char *const suffixes[] = {"", ".gz"};
	const char *directory = request->argument;
	size_t size;
	char name[64];

	snprintf(name, sizeof name, "%s-%s-ubyte", request->split == SPLIT_TRAIN ? "train" : "t10k",
		 what);
	for (size_t i = 0; i < 2; i++) {
		if (snprintf(path, PATH_BYTES, "%s/%s%s", directory, name, suffixes[i]) >=
		    PATH_BYTES)
			return error_set(err, ERR_USAGE, "the directory name %s is too long",
					 directory);
		if (access(path, F_OK))
			continue;

		int rc = read_unzipped(path, &out->file, &size, err);

		return rc ? rc
			  : idx_parse(path, out->file, size, rank, out->sizes, &out->items, err);
	}
	return error_set(err, ERR_INPUT, "%s/%s is missing, with and without .gz (%s). %s",
			 directory, name, strerror(errno), advice);
}

static int idx_open(struct dataset *dataset, const struct dataset_request *request,
		    struct error *err)
{
	struct idx *idx = (struct idx *)dataset;
	const struct part *images = &idx->images, *labels = &idx->labels;
	const char *advice = dataset->format->details;
	char path[PATH_BYTES];
	int rc = read_part(request, "images-idx3", 3, advice, path, &idx->images, err);

	if (!rc)
		rc = read_part(request, "labels-idx1", 1, advice, path, &idx->labels, err);
	if (rc)
		return rc;
	if (labels->sizes[0] != images->sizes[0])
		return error_set(err, ERR_DATA, "%s has %lld labels for %lld images", path,
				 (long long)labels->sizes[0], (long long)images->sizes[0]);
	for (int64_t i = 0; i < labels->sizes[0]; i++)
		if (labels->items[i] >= CLASSES)
			return error_set(err, ERR_DATA, "%s: label %lld is %d, expected 0 to %d",
					 path, (long long)i, labels->items[i], CLASSES - 1);
	dataset->count = labels->sizes[0];
	dataset->shape = (struct shape){1, (int)images->sizes[1], (int)images->sizes[2]};
	dataset->classes = CLASSES;
	return 0;
}

static void idx_close(struct dataset *dataset)
{
	struct idx *idx = (struct idx *)dataset;

	free(idx->images.file);
	free(idx->labels.file);
}

static int idx_sample(const struct dataset *dataset, uint32_t index, uint32_t epoch,
		      struct dataset_scratch *scratch, void *raw, void *target, struct error *err)
{
	const struct idx *idx = (const struct idx *)dataset;
	size_t pixels = (size_t)shape_count(&dataset->shape);

	if (raw)
		memcpy(raw, idx->images.items + index * pixels, pixels);
	*(int32_t *)target = idx->labels.items[index];
	return 0;
}

/* details: what to do if a file is missing. Mean and deviation are those of the training images,
 * the values in common use. */
const struct dataset_format dataset_fashion_mnist = {
	.name = "fashion-mnist",
	.size = sizeof(struct idx),
	.directory = "/usr/share/datasets/fashion-mnist",
	.details = "Install the package dataset-fashion-mnist, pass the directory as --data "
		   "fashion-mnist:DIR, or use --data synthetic",
	.bytes = true,
	.mean = {0.2860f},
	.deviation = {0.3530f},
	.open = idx_open,
	.sample = idx_sample,
	.close = idx_close,
};

const struct dataset_format dataset_mnist = {
	.name = "mnist",
	.size = sizeof(struct idx),
	.needs_directory = true,
	.details =
		"Download the four IDX files of MNIST and pass their directory as --data mnist:DIR",
	.bytes = true,
	.mean = {0.1307f},
	.deviation = {0.3081f},
	.open = idx_open,
	.sample = idx_sample,
	.close = idx_close,
};
