// Linked as usual, this asks for the newest version of a function of libm:
// glibc gave exp a new one in 2.29.
double exp(double);
double diffattn_test_exp(double x) { return exp(x); }
