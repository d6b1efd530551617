/* SPDX-License-Identifier: BSD-3-Clause */
/* The data interface: raw samples by index, and the network input made from them. The table in
 * dataset.c has one row per format; each format is one file. */
#ifndef BERTH_TRAIN_DATA_DATASET_H
#define BERTH_TRAIN_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/error.h"
#include "train/data/augment.h"
#include "train/model/graph.h"

enum split { SPLIT_TRAIN, SPLIT_VAL };
const char *split_name(enum split split); /* "train", "val" */

/* How to open a data set; strings are borrowed during the call. */
struct dataset_request {
	const char *spec; /* all of --data: "fashion-mnist:DIR", or DIR */
	enum split split;
	uint64_t seed; /* for synthetic data and for augmentation */
	/* --augment; NULL or "auto": the format's default. val has none in any case */
	const char *augment;
	int image_size;		 /* --image-size; 0: the format's default */
	bool strict;		 /* --strict-data */
	const char *module_path; /* see base/module.h; or NULL */
	/* set by dataset_open: what follows the name, after its ':' or ',' */
	const char *argument;
};

/* First member of each format's own struct. open fills in the upper half. */
struct dataset {
	int64_t count;	       /* samples, >= 1 */
	struct shape shape;    /* of one sample, raw and augmented */
	int classes;	       /* 1: regression, targets are F32 */
	int64_t skipped_files; /* files skipped because of their names */

	/* set by dataset_open */
	const struct dataset_format *format;
	enum split split;
	bool detected; /* from the files; the request named no format */
	bool strict;   /* a faulty sample is an error instead of being skipped (data/loader.h) */
	uint64_t augment_seed; /* changed by dataset_reseed */
	struct augment augment;
	float (*table)[256]; /* from augment_table; NULL unless raw samples are bytes */
};

/* Memory that a thread keeps between samples. Zero-initialised. */
struct dataset_buffer {
	void *bytes;
	size_t size;
};
struct dataset_scratch {
	struct dataset_buffer raw, file, rows;
};
/* Make room for at least size bytes; the old contents may be lost. NULL if memory is out. */
void *dataset_reserve(struct dataset_buffer *room, size_t size);
void dataset_scratch_free(struct dataset_scratch *scratch);

struct dataset_format {
	const char *name;
	size_t size; /* of the format's own struct */
	/* A sample is a file, decoded on demand: sample may return -ERR_DATA. */
	bool files;
	bool needs_directory;	/* as its argument, unless it has a default */
	const char *directory;	/* the argument's default, or NULL */
	const void *details;	/* for a source file with several formats: what differs */
	struct augment augment; /* default for training samples */
	/* Raw samples are bytes; else floats, already normalised. For bytes: mean and deviation of
	 * value / 255 per channel. */
	bool bytes;
	float mean[AUGMENT_MAX_CHANNELS], deviation[AUGMENT_MAX_CHANNELS];
	/* Fill in a data set that is zero but for its format. Return 0; -ERR_USAGE for a wrong
	 * argument; -ERR_INPUT if a file is missing; -ERR_DATA if its content is wrong. err names
	 * the file and what it contains. */
	int (*open)(struct dataset *dataset, const struct dataset_request *request,
		    struct error *err);
	/* Read the raw sample index. raw: [C][H][W], bytes or floats; NULL (not for formats of
	 * files) reads only the target. target: one I32, or one F32 for regression. epoch is for
	 * formats that crop while they decode. Any number of threads may call this at once, each
	 * with its own scratch. */
	int (*sample)(const struct dataset *dataset, uint32_t index, uint32_t epoch,
		      struct dataset_scratch *scratch, void *raw, void *target, struct error *err);
	/* Make the samples that another seed gives; NULL: they depend on no seed. */
	void (*reseed)(struct dataset *dataset, uint64_t seed);
	/* Free what open has allocated, all of it or, after it failed, a part. */
	void (*close)(struct dataset *dataset);
};
extern const struct dataset_format dataset_cifar10, dataset_cifar100, dataset_fashion_mnist,
	dataset_imagefolder, dataset_mnist, dataset_synthetic;

/* Check that spec is a directory, or that a format has the name that it begins with, without
 * reading any data. Return 0, or
 * -ERR_USAGE with the list of formats. */
int dataset_check_name(const char *spec, struct error *err);
/* Open "NAME", "NAME:ARGUMENT", "NAME,ARGUMENT", or a directory, whose format is then detected by
 * its files (-ERR_INPUT if there are none, -ERR_USAGE if those of several formats). Return 0, or
 * -ERR_USAGE with the list of formats, or if an augmentation does not fit the data. */
int dataset_open(const struct dataset_request *request, struct dataset **out, struct error *err);
/* The network input for a sample: x [C][H][W], normalised and augmented for epoch; target: one I32,
 * or one F32 for regression. A pure function of the data, augment_seed, epoch and index. Return 0,
 * or -ERR_DATA if the sample cannot be decoded (formats of files only); err names the file. */
int dataset_sample(const struct dataset *dataset, uint32_t index, int64_t epoch,
		   struct dataset_scratch *scratch, float *x, void *target, struct error *err);
/* The same before normalisation: raw as the format has it, and the random choice. raw NULL (not for
 * formats of files) gives only the target and the choice. */
int dataset_raw(const struct dataset *dataset, uint32_t index, int64_t epoch,
		struct dataset_scratch *scratch, void *raw, struct augment_params *choice,
		void *target, struct error *err);
/* Continue with a checkpoint's seed instead of the request's, before the first read. */
void dataset_reseed(struct dataset *dataset, uint64_t seed);
void dataset_close(struct dataset *dataset);		/* NULL is allowed */
size_t dataset_raw_size(const struct dataset *dataset); /* bytes of one raw sample */

/* Open a file for reading, which must be regular: reading anything else may never end, or never
 * begin. Return a descriptor, or -ERR_INPUT. */
int dataset_open_file(const char *path, struct stat *info, struct error *err);

/* Parse an IDX file (unzipped) of size bytes, which stay borrowed. Expects rank dimensions of
 * unsigned bytes. sizes has room for rank; *items becomes the start of the elements. err calls the
 * file by name. Return 0, or -ERR_DATA if magic, sizes or length are wrong. Pure. */
int idx_parse(const char *name, const unsigned char *bytes, size_t size, int rank, int64_t *sizes,
	      const unsigned char **items, struct error *err);

/* The binary versions of CIFAR: records of label_bytes labels (the last is the class) and 3x32x32
 * bytes. */
struct cifar_layout {
	int records;	   /* in each file */
	int label_bytes;   /* 1 or 2 */
	int label_ends[2]; /* each label is below its end */
};
extern const struct cifar_layout cifar10_layout, cifar100_train_layout, cifar100_test_layout;
/* Check that a file has that layout: the exact length, and every label in range. err calls the file
 * by name. Return 0, or -ERR_DATA naming what is wrong. Pure. */
int cifar_check(const char *name, const unsigned char *bytes, size_t size,
		const struct cifar_layout *layout, struct error *err);

#endif
