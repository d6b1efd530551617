/* SPDX-License-Identifier: BSD-3-Clause */
/* Strict number parsing: the whole text must be one number in range. */
#ifndef BERTH_BASE_NUMBER_H
#define BERTH_BASE_NUMBER_H

#include <stdint.h>

#include "base/error.h"

/* Parse decimal digits, with '-' if min allows it; no spaces, '+', hexadecimal or exponent. err
 * calls the number by name ("--ranks", "SLURM_NNODES"). Return 0, or -ERR_DATA with the text and
 * the range; *out is untouched then. */
int number_int64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out,
		 struct error *err);
int number_int(const char *name, const char *text, int min, int max, int *out, struct error *err);
/* Parse a finite decimal number ("0.1", "1e-3") with the C locale's dot; no inf, nan or
 * hexadecimal. */
int number_double(const char *name, const char *text, double min, double max, double *out,
		  struct error *err);
/* Parse a duration, "90", "90s", "10m", "2h" or "1d", into milliseconds. Fractions such as "8.5s"
 * are allowed. */
int number_duration_ms(const char *name, const char *text, int64_t *out_ms, struct error *err);

#endif
