/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"

static const struct dataset_format *const formats[] = {
	&dataset_fashion_mnist,
	&dataset_mnist,
	&dataset_cifar10,
	&dataset_cifar100,
	&dataset_imagefolder,
	&dataset_synthetic,
	NULL,
};

const char *split_name(enum split split)
{
	return split == SPLIT_TRAIN ? "train" : "val";
}

static const struct dataset_format *find_known(const char *spec)
{
	size_t size = strcspn(spec, ":,"), i = 0;

	while (formats[i] &&
	       (strlen(formats[i]->name) != size || memcmp(spec, formats[i]->name, size)))
		i++;
	return formats[i];
}

static const struct dataset_format *find_format(const char *spec, struct error *err)
{
	const struct dataset_format *format = find_known(spec);
	char known[256] = "";

	if (format)
		return format;
	for (size_t i = 0; formats[i]; i++)
		text_append(known, sizeof known, "%s%s", i ? ", " : "", formats[i]->name);
	error_set(err, ERR_USAGE,
		  "--data %s: unknown format '%.*s'; expected a directory, or one of: %s", spec,
		  (int)strcspn(spec, ":,"), spec, known);
	return NULL;
}

/* Is spec a directory, without a format's name in front? */
static bool is_bare_directory(const char *spec)
{
	struct stat st;

	return !find_known(spec) && (memchr(spec, '/', strcspn(spec, ":,")) ||
				     (!stat(spec, &st) && S_ISDIR(st.st_mode)));
}

/* Find the format of a directory by the files that it holds. */
static const struct dataset_format *detect(const char *directory, struct error *err)
{
	static const struct {
		const struct dataset_format *format;
		const char *file;
	} signs[] = {
		{&dataset_mnist, "train-images-idx3-ubyte"},
		{&dataset_mnist, "train-images-idx3-ubyte.gz"},
		{&dataset_cifar10, "data_batch_1.bin"},
		{&dataset_cifar10, "cifar-10-batches-bin/data_batch_1.bin"},
		{&dataset_cifar100, "train.bin"},
		{&dataset_cifar100, "cifar-100-binary/train.bin"},
		{&dataset_imagefolder, "train/."}, /* a directory */
	};
	const struct dataset_format *found = NULL, *other = NULL;
	char path[4096], looked[320] = "";

	for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
		text_append(looked, sizeof looked, "%s%s (%s)", i ? ", " : "", signs[i].file,
			    signs[i].format->name);
		snprintf(path, sizeof path, "%s/%s", directory, signs[i].file);
		if (access(path, F_OK) || signs[i].format == found)
			continue;
		other = found;
		found = signs[i].format;
	}
	if (found && !other)
		return found;
	if (other)
		error_set(err, ERR_USAGE,
			  "--data %s: the directory holds both %s and %s; write --data %s:%s or "
			  "--data %s:%s",
			  directory, other->name, found->name, other->name, directory, found->name,
			  directory);
	else
		error_set(err, ERR_INPUT,
			  "--data %s: no data set found; looked for %s. Correct the directory, or "
			  "name its format: --data FORMAT:DIR",
			  directory, looked);
	return NULL;
}

int dataset_check_name(const char *spec, struct error *err)
{
	return is_bare_directory(spec) || find_format(spec, err) ? 0 : -ERR_USAGE;
}

/* Choose the augmentation and check that it fits the samples. */
static int choose_augment(const struct dataset_request *request,
			  const struct dataset_format *format, struct augment *out,
			  struct error *err)
{
	bool own = !request->augment || !strcmp(request->augment, "auto");
	int rc = 0;

	*out = format->augment;
	if (!own)
		rc = augment_parse(request->augment, out, err);
	if (!rc && out->resized_crop && !format->augment.resized_crop)
		rc = error_set(err, ERR_USAGE,
			       "--augment resized-crop requires images of any size (imagefolder:); "
			       "for %s use crop=4",
			       format->name);
	if (!rc && request->image_size && !format->files)
		rc = error_set(err, ERR_USAGE,
			       "--image-size requires images of any size (imagefolder:); the "
			       "images of %s have a fixed size",
			       format->name);
	if (request->split != SPLIT_TRAIN)
		*out = (struct augment){0};
	return rc;
}

void dataset_reseed(struct dataset *dataset, uint64_t seed)
{
	dataset->augment_seed = seed;
	if (dataset->format->reseed)
		dataset->format->reseed(dataset, seed);
}

static int prepare(struct dataset *dataset, const struct dataset_request *request,
		   struct error *err)
{
	const struct shape *shape = &dataset->shape;
	const struct dataset_format *format = dataset->format;

	dataset->split = request->split;
	dataset->strict = request->strict;
	dataset->augment_seed = request->seed;
	if ((dataset->augment.crop_pad || dataset->augment.flip) &&
	    (shape->height < 2 || shape->width < 2))
		return error_set(err, ERR_USAGE,
				 "--augment %s requires images; a sample of %s is %dx%dx%d",
				 request->augment, request->spec, shape->channels, shape->height,
				 shape->width);
	if (!format->bytes)
		return 0;
	if (shape->channels > AUGMENT_MAX_CHANNELS)
		return error_set(err, ERR_INTERNAL, "%d channels of bytes", shape->channels);
	dataset->table = calloc((size_t)shape->channels, sizeof *dataset->table);
	if (!dataset->table)
		return error_memory(err, "the data");
	augment_table(shape->channels, format->mean, format->deviation, dataset->table);
	return 0;
}

int dataset_open(const struct dataset_request *request, struct dataset **out, struct error *err)
{
	const char *spec = request->spec;
	size_t size = strcspn(spec, ":,");
	bool bare = is_bare_directory(spec);
	const struct dataset_format *format = bare ? detect(spec, err) : find_format(spec, err);
	struct dataset_request whole = *request;
	struct dataset *dataset;
	struct augment augment;
	int rc = format ? choose_augment(request, format, &augment, err) : -err->code;

	if (rc)
		return rc;
	whole.argument = bare ? spec : spec[size] ? spec + size + 1 : "";
	if (!*whole.argument && format->directory)
		whole.argument = format->directory;
	if (!*whole.argument && format->needs_directory)
		return error_set(err, ERR_USAGE, "--data %s requires its directory: --data %s:DIR",
				 format->name, format->name);
	dataset = calloc(1, format->size);
	if (!dataset)
		return error_memory(err, "the data");
	dataset->format = format;
	dataset->detected = bare;
	rc = format->open(dataset, &whole, err);
	dataset->augment = augment;
	if (!rc)
		rc = prepare(dataset, &whole, err);
	if (rc)
		dataset_close(dataset);
	else
		*out = dataset;
	return rc;
}

int dataset_open_file(const char *path, struct stat *info, struct error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no waiting for a FIFO */

	if (fd < 0)
		return error_set(err, ERR_INPUT, "cannot read %s: %s", path, strerror(errno));
	if (!fstat(fd, info) && S_ISREG(info->st_mode))
		return fd;
	close(fd);
	return error_set(err, ERR_INPUT, "%s is not a regular file", path);
}

size_t dataset_raw_size(const struct dataset *dataset)
{
	return (size_t)shape_count(&dataset->shape) * (dataset->format->bytes ? 1 : sizeof(float));
}

void *dataset_reserve(struct dataset_buffer *capacity, size_t size)
{
	if (size > capacity->size) {
		free(capacity->bytes);
		capacity->bytes = malloc(size);
		capacity->size = capacity->bytes ? size : 0;
	}
	return capacity->bytes;
}

void dataset_scratch_free(struct dataset_scratch *scratch)
{
	free(scratch->raw.bytes);
	free(scratch->file.bytes);
	free(scratch->rows.bytes);
	*scratch = (struct dataset_scratch){0};
}

int dataset_raw(const struct dataset *dataset, uint32_t index, int64_t epoch,
		struct dataset_scratch *scratch, void *raw, struct augment_params *choice,
		void *target, struct error *err)
{
	if (index >= (uint64_t)dataset->count)
		return error_set(err, ERR_INTERNAL, "sample %u of %lld", index,
				 (long long)dataset->count);
	augment_draw_params(&dataset->augment, dataset->augment_seed, (uint32_t)epoch, index,
			    choice);
	return dataset->format->sample(dataset, index, (uint32_t)epoch, scratch, raw, target, err);
}

int dataset_sample(const struct dataset *dataset, uint32_t index, int64_t epoch,
		   struct dataset_scratch *scratch, float *x, void *target, struct error *err)
{
	void *raw = dataset_reserve(&scratch->raw, dataset_raw_size(dataset));
	struct augment_params choice;

	if (!raw)
		return error_memory(err, "a sample");
	int rc = dataset_raw(dataset, index, epoch, scratch, raw, &choice, target, err);

	if (rc)
		return rc;
	augment_apply(raw, &dataset->shape, dataset->augment.crop_pad, &choice,
		      (const float(*)[256])dataset->table, x);
	return 0;
}

void dataset_close(struct dataset *dataset)
{
	if (!dataset)
		return;
	free(dataset->table);
	dataset->format->close(dataset);
	free(dataset);
}
