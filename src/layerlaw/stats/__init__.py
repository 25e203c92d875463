"""What we remember of features and labels: small statistics with update, merge and all-reduce.

Two passes over the data. Pass 1 (`ClassSums`) gives the class means; `Centers` are an orthonormal basis of their span;
pass 2 (`Scatter`) keeps what the residuals do inside that span. No d×d matrix, O(K·d) memory, leading batch dimensions.
"""

from layerlaw.stats.centers import Centers, find_centers
from layerlaw.stats.labels import checked_labels, deal_groups, one_hot
from layerlaw.stats.ranks import all_reduce
from layerlaw.stats.scatter import Frame, LeftOut, NearestCenter, Scatter, project
from layerlaw.stats.sums import ClassSums

__all__ = [
    "Centers",
    "ClassSums",
    "Frame",
    "LeftOut",
    "NearestCenter",
    "Scatter",
    "all_reduce",
    "checked_labels",
    "deal_groups",
    "find_centers",
    "one_hot",
    "project",
]
