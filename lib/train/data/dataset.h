/* SPDX-License-Identifier: BSD-3-Clause */
/* The data seam: samples by index. One row of the table in dataset.c, one file a format. */
#ifndef BERTH_TRAIN_DATA_DATASET_H
#define BERTH_TRAIN_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "train/model/graph.h"

enum split { SPLIT_TRAIN, SPLIT_VAL };
const char *split_name(enum split split); /* "train", "val" */

struct dataset_request {
	const char *spec;     /* all of --data: "fashion-mnist:DIR" */
	const char *argument; /* what follows the name, after its ':' or ','; "" when nothing */
	enum split split;
	uint64_t seed; /* for data made from it */
};

/* First member of each format's own struct. */
struct dataset {
	const struct dataset_format *format;
	int64_t count;	    /* samples, >= 1 */
	struct shape shape; /* of one */
	int classes;	    /* 1: regression, targets are F32 */
};

struct dataset_format {
	const char *name, *summary;
	/* -ERR_USAGE: a wrong argument; -ERR_INPUT: a file is missing; -ERR_DATA: it is not what it
	 * should be: err names the file and what stands there. */
	int (*open)(const struct dataset_request *request, struct dataset **out, struct error *err);
	/* x: [count][C][H][W], normalised; target: I32 [count], or F32 [count] for regression. */
	int (*read)(struct dataset *dataset, const uint32_t *indices, int count, float *x,
		    void *target, struct error *err);
	void (*close)(struct dataset *dataset);
};
extern const struct dataset_format dataset_fashion_mnist, dataset_mnist, dataset_synthetic;

/* Open "NAME", "NAME:ARGUMENT" or "NAME,ARGUMENT". -ERR_USAGE lists the formats. */
int dataset_open(const char *spec, enum split split, uint64_t seed, struct dataset **out,
		 struct error *err);
int dataset_read(struct dataset *dataset, const uint32_t *indices, int count, float *x,
		 void *target, struct error *err);
void dataset_close(struct dataset *dataset); /* NULL is fine */

/* An IDX file's content (unzipped): size bytes, borrowed. Expects rank dimensions of unsigned
 * bytes. sizes: room for rank; *items: where the elements begin. name is for err. -ERR_DATA when
 * magic, sizes or length are wrong. Pure. */
int idx_parse(const char *name, const unsigned char *bytes, size_t size, int rank, int64_t *sizes,
	      const unsigned char **items, struct error *err);

#endif
