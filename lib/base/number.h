/* SPDX-License-Identifier: BSD-3-Clause */
/* Strict numbers: the whole text is one number in the range, or an error. */
#ifndef BERTH_BASE_NUMBER_H
#define BERTH_BASE_NUMBER_H

#include <stdint.h>

#include "base/error.h"

/* Decimal digits, with '-' where min allows it; no spaces, no '+', no hex, no exponent.
 * name says in err what the number is ("--ranks", "SLURM_NNODES").
 * 0, or -ERR_DATA with the text and the range; out untouched then. */
int number_int64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out,
		 struct error *err);
int number_int(const char *name, const char *text, int min, int max, int *out, struct error *err);
/* A finite decimal number ("0.1", "1e-3"), the C locale's dot, no inf, no nan, no hex. */
int number_double(const char *name, const char *text, double min, double max, double *out,
		  struct error *err);
/* "90", "90s", "10m", "2h", "1d" in milliseconds; "8.5s" allowed. */
int number_duration_ms(const char *name, const char *text, int64_t *out_ms, struct error *err);

#endif
