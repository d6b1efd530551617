/* SPDX-License-Identifier: BSD-3-Clause */
/* The data seam: raw samples by index, and what the network gets of them. One row of the table in
 * dataset.c, one file a format. */
#ifndef BERTH_TRAIN_DATA_DATASET_H
#define BERTH_TRAIN_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "train/data/augment.h"
#include "train/model/graph.h"

enum split { SPLIT_TRAIN, SPLIT_VAL };
const char *split_name(enum split split); /* "train", "val" */

/* What is asked for; strings borrowed for the call. */
struct dataset_request {
	const char *spec; /* all of --data: "fashion-mnist:DIR" */
	enum split split;
	uint64_t seed; /* for data made from it, and for augmentation */
	/* --augment; NULL or "auto": the format's own. val: none in any case */
	const char *augment;
	int image_size;		 /* --image-size; 0: the format's own */
	bool strict;		 /* --strict-data */
	const char *module_path; /* of base/module.h, or NULL */
	/* dataset_open sets it: what follows the name, after its ':' or ',' */
	const char *argument;
};

/* First member of each format's own struct. open fills the upper half; mean and deviation, of
 * value / 255 in each channel, are for bytes alone. */
struct dataset {
	const struct dataset_format *format;
	int64_t count;	       /* samples, >= 1 */
	struct shape shape;    /* of one, raw and augmented */
	int classes;	       /* 1: regression, targets are F32 */
	int64_t skipped_files; /* files that were passed over for their names */
	bool bytes;	       /* raw samples are bytes, else floats that are normalised already */
	float mean[AUGMENT_MAX_CHANNELS], deviation[AUGMENT_MAX_CHANNELS];

	/* of dataset_open */
	enum split split;
	bool strict;	       /* a faulty sample is an error, not passed over (data/loader.h) */
	uint64_t augment_seed; /* may be set before the first read: a resumed run's own */
	struct augment augment;
	float (*table)[256]; /* of augment_table, for bytes */
};

/* Memory that a thread keeps from one sample to the next. All zero at first. */
struct dataset_buffer {
	void *bytes;
	size_t size;
};
struct dataset_scratch {
	struct dataset_buffer raw, file, rows;
};
/* At least size bytes, with what stood there or not. NULL when memory is out. */
void *dataset_reserve(struct dataset_buffer *room, size_t size);
void dataset_scratch_free(struct dataset_scratch *scratch);

struct dataset_format {
	const char *name, *summary;
	bool files; /* a sample is a file, decoded when it is wanted: sample may end with -ERR_DATA
		     */
	struct augment augment; /* of training samples, unless told otherwise */
	/* -ERR_USAGE: a wrong argument; -ERR_INPUT: a file is missing; -ERR_DATA: it is not what it
	 * should be: err names the file and what stands there. */
	int (*open)(const struct dataset_request *request, struct dataset **out, struct error *err);
	/* The raw sample index. raw: [C][H][W], bytes or floats, NULL (not of files): the target is
	 * wanted alone; target: one I32, or one F32 for
	 * regression. epoch: for formats that crop while they decode. Any number of threads may be
	 * in here at once, each with a scratch of its own. */
	int (*sample)(const struct dataset *dataset, uint32_t index, uint32_t epoch,
		      struct dataset_scratch *scratch, void *raw, void *target, struct error *err);
	void (*close)(struct dataset *dataset);
};
extern const struct dataset_format dataset_cifar10, dataset_cifar100, dataset_fashion_mnist,
	dataset_imagefolder, dataset_mnist, dataset_synthetic;

/* Is there a format of the name that spec begins with? -ERR_USAGE lists them. Nothing is read. */
int dataset_check_name(const char *spec, struct error *err);
/* Open "NAME", "NAME:ARGUMENT" or "NAME,ARGUMENT". -ERR_USAGE lists the formats, or says that an
 * augmentation does not fit the data. */
int dataset_open(const struct dataset_request *request, struct dataset **out, struct error *err);
/* What the network gets of a sample: x [C][H][W], normalised and augmented for epoch; target: one
 * I32, or one F32 for regression. A pure function of the data, augment_seed, epoch and index.
 * -ERR_DATA: the sample cannot be decoded (formats of files alone); err names the file. */
int dataset_sample(const struct dataset *dataset, uint32_t index, int64_t epoch,
		   struct dataset_scratch *scratch, float *x, void *target, struct error *err);
/* The same before normalisation: raw as the format has it, and what chance says. raw NULL (not of
 * formats of files): the target and what chance says alone. */
int dataset_raw(const struct dataset *dataset, uint32_t index, int64_t epoch,
		struct dataset_scratch *scratch, void *raw, struct augment_params *choice,
		void *target, struct error *err);
void dataset_close(struct dataset *dataset); /* NULL is fine */

/* An IDX file's content (unzipped): size bytes, borrowed. Expects rank dimensions of unsigned
 * bytes. sizes: room for rank; *items: where the elements begin. name is for err. -ERR_DATA when
 * magic, sizes or length are wrong. Pure. */
int idx_parse(const char *name, const unsigned char *bytes, size_t size, int rank, int64_t *sizes,
	      const unsigned char **items, struct error *err);

/* The binary versions of CIFAR: records of label_bytes labels (the last is the class) and 3x32x32
 * bytes. */
struct cifar_layout {
	int records;	   /* in each file */
	int label_bytes;   /* 1 or 2 */
	int label_ends[2]; /* a label is below its end */
};
extern const struct cifar_layout cifar10_layout, cifar100_train_layout, cifar100_test_layout;
/* Is a file's content of that layout: the exact length, every label in range? -ERR_DATA names what
 * is wrong. name is for err. Pure. */
int cifar_check(const char *name, const unsigned char *bytes, size_t size,
		const struct cifar_layout *layout, struct error *err);

#endif
